"""`python -m tconv bench`: each problem verified against fp64, then timed beside PyTorch in the same process."""

from __future__ import annotations

import datetime
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional as F

import tconv
from tconv import explain
from tconv import problems as problem_sets
from tconv.bench_cpu import peak_extra_bytes
from tconv.bench_limits import Limits, measure_limits, rate_name
from tconv.bench_timing import Timing, host_seconds_per_call, time_interleaved
from tconv.bench_verify import Check, check_backward, check_forward
from tconv.problems import Problem

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}

OURS = {1: tconv.conv_transpose1d, 2: tconv.conv_transpose2d, 3: tconv.conv_transpose3d}
PYTORCH = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass
class Options:
    """What to run; one process has one setting, because PyTorch keeps the first plan that it finds for a shape."""

    names: list[str] = field(default_factory=list)
    suite: str | None = None
    device: str = "auto"
    dtype: str = "fp32"
    strict: bool = False
    channels_last: bool = False
    bias: bool = False
    backward: bool = False
    pytorch: str = "default"  # or "benchmark" (cudnn.benchmark on from the start), or "both", the second elsewhere
    verify: bool = True
    cuts: int = 16  # of one family, when every candidate is timed
    suite_on_gpu: str | None = None  # in place of the main layers, where no problem is named
    threads: int | None = None
    full_size: bool = False
    batch: int | None = None
    seconds: float = 1.0


@dataclass
class Beside:
    """The two sides in a process of another PyTorch setting."""

    ours: Timing
    pytorch: Timing

    @property
    def speedup(self) -> float:
        return self.pytorch.median / self.ours.median

    def as_dict(self) -> dict[str, Any]:
        return {
            "ours_seconds": self.ours.as_dict(),
            "pytorch_seconds": self.pytorch.as_dict(),
            "speedup": self.speedup,
        }


@dataclass
class Result:
    """Everything measured about one problem; times in seconds."""

    problem: Problem
    original: Problem
    dtype: str = "fp32"
    plan: str = ""
    checks: list[Check] = field(default_factory=list)
    ours: Timing | None = None
    pytorch: Timing | None = None
    benchmark: Beside | None = None  # with cudnn.benchmark on, where both settings were asked for
    floor: float = 0.0
    floor_from: str = ""
    balance: float = math.nan  # the time that arithmetic takes at least, over that of memory
    difference: float = math.nan
    extra_memory: int | None = None  # bytes, on a CPU
    pytorch_extra_memory: int | None = None
    error: str = ""
    pytorch_error: str = ""
    unverified: bool = False  # by wish: another process verifies the same kernels

    @property
    def scaled(self) -> bool:
        return self.problem != self.original

    @property
    def family(self) -> str:
        """The kernel family that the plan names."""
        found = re.search(r" on (?:cpu|cuda:\d+): ([\w-]+)", self.plan)
        return found.group(1) if found else "-"

    @property
    def passed(self) -> bool:
        verified = bool(self.checks) or self.unverified
        return not self.error and verified and all(check.passed for check in self.checks)

    @property
    def speedup(self) -> float:
        return self.pytorch.median / self.ours.median if self.ours and self.pytorch else math.nan

    @property
    def speedup_over_better(self) -> float:
        """Over PyTorch at the better of the settings that were measured."""
        return min(self.speedup, self.benchmark.speedup) if self.benchmark else self.speedup

    @property
    def share(self) -> float:
        """Share of the machine's limit that we reach."""
        return self.floor / self.ours.median if self.ours and self.ours.median > 0 else math.nan

    @property
    def extra_memory_share(self) -> float | None:
        """Memory beyond the tensors as a share of input and output; None where it is not known or these are empty."""
        tensors = math.prod(self.problem.input_shape) + math.prod(self.problem.output_shape)
        itemsize = DTYPES[self.dtype].itemsize
        return self.extra_memory / (tensors * itemsize) if tensors and self.extra_memory is not None else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.problem.name,
            "problem": {k: v for k, v in asdict(self.problem).items() if k not in ("name", "note") and v is not None},
            "scaled": self.scaled,
            "family": self.family,
            "plan": self.plan,
            "passed": self.passed,
            "error": self.error,
            "pytorch_error": self.pytorch_error,
            "checks": [check.as_dict() for check in self.checks],
            "largest_difference_from_pytorch": self.difference,
            "ours_seconds": self.ours.as_dict() if self.ours else None,
            "pytorch_seconds": self.pytorch.as_dict() if self.pytorch else None,
            "speedup": self.speedup,
            "with_cudnn_benchmark": self.benchmark.as_dict() if self.benchmark else None,
            "speedup_over_better": self.speedup_over_better,
            "floor_seconds": self.floor,
            "floor_from": self.floor_from,
            "arithmetic_over_bandwidth": self.balance,
            "share_of_floor": self.share,
            "extra_memory_bytes": self.extra_memory,
            "extra_memory_share": self.extra_memory_share,
            "pytorch_extra_memory_bytes": self.pytorch_extra_memory,
        }


def choose_device(name: str) -> torch.device:
    """The device to measure: `auto` takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}: {error}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but PyTorch finds no usable GPU")
    return device


def choose_problems(options: Options) -> list[Problem]:
    """The problems that the options name."""
    if not options.names and options.suite is None:
        return problem_sets.select_problems(problem_sets.DEFAULT_NAMES)
    chosen = problem_sets.select_problems(options.names, options.suite)
    if options.batch is not None:
        # Problems that differ in nothing else are one.
        chosen = [replace(problem, batch=options.batch) for problem in chosen]
        chosen = list({replace(problem, name="", note="", source=""): problem for problem in chosen}.values())
    if not options.channels_last:
        return chosen
    # PyTorch has no channels-last format for one axis: the two sides would do different work.
    fitting = [problem for problem in chosen if problem.rank > 1]
    if not fitting:
        raise ValueError(f"--channels-last needs 2-D or 3-D problems, got {', '.join(p.name for p in chosen)}")
    return fitting


def apply_settings(options: Options) -> None:
    """Sets the process up; must come before PyTorch's first convolution."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = options.pytorch == "benchmark"
    torch.backends.cudnn.allow_tf32 = not options.strict


class Bench:
    """One run: a device, its limits, and the problems one after the other."""

    def __init__(self, options: Options) -> None:
        apply_settings(options)
        self.device = choose_device(options.device)
        if not options.names and options.suite is None and self.device.type == "cuda":
            options = replace(options, suite=options.suite_on_gpu)
        self.options = options
        self.dtype = DTYPES[options.dtype]
        self.tf32 = self.device.type == "cuda" and self.dtype == torch.float32 and not options.strict
        self.problems = choose_problems(options)
        self.limits: Limits | None = None
        self.load = round(os.getloadavg()[0], 2)
        self.generator = torch.Generator(self.device)
        self.generator.seed()

    @property
    def busy(self) -> bool:
        """Whether other programs wanted the processors when the run began."""
        return self.device.type == "cpu" and self.load > 0.5 * (os.cpu_count() or 1)

    @property
    def both_settings(self) -> bool:
        """Whether PyTorch's other setting is measured too, in another process; it speaks of GPUs alone."""
        return self.options.pytorch == "both" and self.device.type == "cuda"

    def measure_machine(self) -> Limits:
        self.limits = measure_limits(self.device, self.dtype)
        return self.limits

    def run(self, original: Problem) -> Result:
        """Verifies and times one problem; a failure is a result, not an exception."""
        problem = self.size_to_run(original)
        result = Result(
            problem=problem, original=original, dtype=self.options.dtype, unverified=not self.options.verify
        )
        try:
            self._run(problem, result)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            result.error = str(error).splitlines()[0]
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return result

    def make_tensors(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Fresh random input, weight and bias in the dtype and layout of the run."""
        make: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "generator": self.generator}
        x = problem.make_input(**make, channels_last=self.options.channels_last)
        weight = problem.make_weight(**make, channels_last=self.options.channels_last)
        return x, weight, problem.make_bias(**make) if self.options.bias else None

    def size_to_run(self, original: Problem) -> Problem:
        """The problem itself, or what is left of it on a CPU."""
        scale = self.device.type == "cpu" and not self.options.full_size
        return original.scaled() if scale else original

    def _run(self, problem: Problem, result: Result) -> None:
        options = self.options
        x, weight, bias = self.make_tensors(problem)
        arguments = problem.arguments()
        if options.backward:
            x.requires_grad_()
            weight.requires_grad_()

        self._poison(problem)
        ours = OURS[problem.rank](x, weight, bias, **arguments)
        if options.verify:
            result.checks = check_forward(problem, x, weight, bias, ours, tf32=self.tf32)
        calls: list[Callable[[], object]]
        if options.backward:
            grad_output = torch.empty_like(ours).normal_(generator=self.generator)  # in the layout of the output
            grads = torch.autograd.grad(ours, (x, weight), grad_output, retain_graph=True)
            if options.verify:
                result.checks += check_backward(problem, x, weight, grad_output, *grads, tf32=self.tf32)
            del grads
            calls = [lambda: torch.autograd.grad(ours, (x, weight), grad_output, retain_graph=True)]
        else:
            calls = [lambda: OURS[problem.rank](x, weight, bias, **arguments)]

        try:
            theirs = PYTORCH[problem.rank](x, weight, bias, **arguments)
            if theirs.numel() > 0 and theirs.shape == ours.shape:
                result.difference = _largest_difference(ours.detach(), theirs.detach())
            if options.backward:
                calls.append(lambda: torch.autograd.grad(theirs, (x, weight), grad_output, retain_graph=True))
            else:
                del theirs
                calls.append(lambda: PYTORCH[problem.rank](x, weight, bias, **arguments))
        except (RuntimeError, NotImplementedError) as error:
            result.pytorch_error = str(error).splitlines()[0]

        result.plan = plan_summary(problem, options, self.device, tf32=self.tf32)
        if not result.passed:
            return
        if not options.backward:
            del ours
        if self.device.type == "cpu":
            result.extra_memory = peak_extra_bytes(calls[0])
            result.pytorch_extra_memory = peak_extra_bytes(calls[1]) if len(calls) > 1 else None
        timings = time_interleaved(calls, self.device, options.seconds)
        result.ours = timings[0]
        result.pytorch = timings[1] if len(timings) > 1 else None
        if self.limits is not None:
            rate = rate_name(self.dtype, tf32=self.tf32)
            itemsize = self.dtype.itemsize
            result.floor, result.floor_from = self.limits.floor(problem, itemsize, rate, backward=options.backward)
            result.balance = self.limits.balance(problem, itemsize, rate, backward=options.backward)

    def _poison(self, problem: Problem) -> None:
        """Leaves NaN in the memory that the allocators are likely to hand out for the output."""
        torch.full(problem.output_shape, math.nan, dtype=self.dtype, device=self.device)
        if self.device.type == "cpu":  # large results come from memory that the library keeps
            torch.ops.tconv._kept_like(torch.empty(problem.output_shape, dtype=self.dtype)).fill_(math.nan)

    def host_overhead(self) -> list[Timing]:
        """Host time of a warm tiny call: ours, then PyTorch's."""
        x = torch.randn(1, 4, 4, 4, device=self.device, dtype=self.dtype)
        weight = torch.randn(4, 4, 2, 2, device=self.device, dtype=self.dtype)
        with torch.no_grad():
            return host_seconds_per_call(
                [lambda: tconv.conv_transpose2d(x, weight, stride=2), lambda: F.conv_transpose2d(x, weight, stride=2)],
                self.device,
            )

    def describe(self) -> dict[str, Any]:
        """Machine, date, command and versions, for a record that can be repeated."""
        machine: dict[str, Any] = {"system": platform.platform(), "cpu": cpu_name(), "cores": os.cpu_count()}
        machine["threads"] = torch.get_num_threads()
        machine["load_at_start"] = self.load
        if self.device.type == "cuda":
            machine["gpu"] = torch.cuda.get_device_name(self.device)
        return {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(["python", "-m", "tconv", *sys.argv[1:]]),
            "machine": machine,
            "versions": {
                "tconv": tconv.__version__,
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version() if self.device.type == "cuda" else None,
                "python": platform.python_version(),
            },
            "settings": {
                "device": str(self.device),
                "dtype": self.options.dtype,
                "tf32": self.tf32,
                "layout": "channels_last (1-D left out)" if self.options.channels_last else "as the model passes it",
                "bias": self.options.bias,
                "direction": "backward" if self.options.backward else "forward",
                "cudnn_benchmark": self.options.pytorch == "benchmark",
            },
        }


def _largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest absolute difference, sample by sample so that it needs little memory."""
    return max(float((left - right).abs().max()) for left, right in zip(a, b, strict=True))


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def geometric_mean(values: list[float]) -> float:
    """Geometric mean of the positive finite values; NaN if there are none."""
    logs = [math.log(value) for value in values if math.isfinite(value) and value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def plan_summary(problem: Problem, options: Options, device: torch.device, *, tf32: bool) -> str:
    """The plan (of grad_input, for the backward pass) in words; empty where the work is not ours."""
    setting = explain.Setting(
        dtype=str(DTYPES[options.dtype]).removeprefix("torch."),
        device=str(device),
        direction="grad_input" if options.backward else "forward",
        bias=options.bias,
        channels_last=options.channels_last,
        precision="tf32" if tf32 else "strict",
    )
    try:
        return explain.plan_summary(problem, setting)
    except RuntimeError:
        return ""
