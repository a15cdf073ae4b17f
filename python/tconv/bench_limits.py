"""What the machine itself can do, measured in the same run as the problems."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch

from tconv.bench_timing import make_clock
from tconv.problems import Problem

_COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
_MATRIX_SIDE = {"cuda": 8192, "cpu": 1536}
_CHAIN_ROUNDS = 10_000_000
_REPEATS = {"cuda": 10, "cpu": 5}


@dataclass
class Limits:
    """Copy bandwidth in bytes/s (read + write), matrix rates in FLOP/s by name, the time of the smallest launch."""

    copy: float
    launch: float
    rates: dict[str, float] = field(default_factory=dict)

    def floor(self, problem: Problem, itemsize: int, rate: str, *, backward: bool) -> tuple[float, str]:
        """The least time in seconds that this machine needs for the problem, and what sets it."""
        parts = self._parts(problem, itemsize, rate, backward=backward)
        name = max(parts, key=parts.__getitem__)
        return parts[name], name

    def balance(self, problem: Problem, itemsize: int, rate: str, *, backward: bool) -> float:
        """How many times as long as the problem's memory its arithmetic takes at least."""
        parts = self._parts(problem, itemsize, rate, backward=backward)
        return parts["arithmetic"] / parts["bandwidth"] if parts["bandwidth"] > 0 else math.nan

    def _parts(self, problem: Problem, itemsize: int, rate: str, *, backward: bool) -> dict[str, float]:
        moved, operations = work_of(problem, itemsize, backward=backward)
        return {
            "bandwidth": moved / self.copy,
            "arithmetic": operations / self.rates[rate],
            "launch": self.launch,
        }

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def work_of(problem: Problem, itemsize: int, *, backward: bool) -> tuple[int, int]:
    """Bytes that must be moved and operations that must be done; both gradients for the backward pass."""
    read_twice = problem.elements - math.prod(problem.output_shape) if backward else 0
    return (problem.elements + read_twice) * itemsize, (2 if backward else 1) * 2 * problem.multiply_adds


def rate_name(dtype: torch.dtype, *, tf32: bool) -> str:
    """The name under which the matrix rate of a dtype is kept."""
    name = str(dtype).removeprefix("torch.")
    return "tf32" if tf32 and dtype == torch.float32 else name


@contextmanager
def _matmul_tf32(allowed: bool) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = allowed
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    clock = make_clock(device)
    clock.round([call])
    samples = [clock.round([call])[0] for _ in range(_REPEATS[device.type])]
    # A processor's limit is what it reaches undisturbed; a GPU is not shared.
    return min(samples) if device.type == "cpu" else statistics.median(samples)


def _copy_bandwidth(device: torch.device) -> float:
    count = _COPY_BYTES[device.type]
    source = torch.ones(count // 4, device=device)
    target = torch.empty_like(source)
    return 2 * count / _seconds(lambda: target.copy_(source), device)


def _multiply_add_rate(dtype: torch.dtype) -> float:
    """FLOP/s of multiply-adds in registers, on all threads at once."""
    name = str(dtype).removeprefix("torch.")
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:

        def on_all() -> int:
            return sum(pool.map(lambda _: torch.ops.tconv._multiply_adds(name, _CHAIN_ROUNDS), range(threads)))

        return 2 * on_all() / _seconds(on_all, torch.device("cpu"))


def measure_limits(device: torch.device, dtype: torch.dtype) -> Limits:
    """Measures copy bandwidth, matrix rates and the smallest launch on `device`."""
    kind = device.type
    rates: dict[str, float] = {}
    wanted = {(torch.float32, False), (dtype, False)}
    if kind == "cuda":
        wanted |= {(torch.float32, True), (torch.bfloat16, False)}
    for matrix_dtype, with_tf32 in sorted(wanted, key=str):
        # fp64 runs at a small fraction of the other rates on most devices.
        side = _MATRIX_SIDE[kind] // (2 if matrix_dtype == torch.float64 else 1)
        left, right = (torch.randn(side, side, device=device).to(matrix_dtype) for _ in range(2))
        with _matmul_tf32(with_tf32):
            seconds = _seconds(lambda left=left, right=right: left @ right, device)
        rate = 2 * side**3 / seconds
        if kind == "cpu" and matrix_dtype in (torch.float32, torch.float64):
            # A matrix product may be far from what the processor can do.
            rate = max(rate, _multiply_add_rate(matrix_dtype))
        rates[rate_name(matrix_dtype, tf32=with_tf32)] = rate
    if kind == "cpu" and dtype in (torch.float16, torch.bfloat16):
        # Half types may be widened and multiplied in fp32, whichever is faster.
        name = rate_name(dtype, tf32=False)
        rates[name] = max(rates[name], rates["float32"])

    # On a CPU there is no launch; an operator's own overhead is not a limit of the machine.
    one = torch.zeros(1, device=device)
    launch = _seconds(lambda: one.add_(1), device) if kind == "cuda" else 0.0
    return Limits(copy=_copy_bandwidth(device), launch=launch, rates=rates)
