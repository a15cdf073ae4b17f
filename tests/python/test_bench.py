"""The benchmark: it must notice wrong results, measure what it says, and report it."""

import io
import json
import math
import time
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from tconv import bench, bench_report, bench_verify, terminal
from tconv.bench import Result
from tconv.bench_cpu import summary
from tconv.bench_limits import Limits, measure_limits
from tconv.bench_timing import Timing, summarize, time_interleaved
from tconv.bench_verify import Check
from tconv.problems import Problem

FUNCTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
PROBLEMS = [
    Problem("grouped", 2, 8, 12, (7, 9), (3, 4), (2, 3), (1, 2), (1, 0), (2, 1), 4),
    Problem("line", 3, 6, 4, (11,), (5,), (1,), (2,), (0,), (3,), 2),
    Problem("volume", 1, 4, 6, (4, 5, 6), (3, 2, 3), (2, 1, 3), (1, 0, 1), (0, 0, 2), (1, 2, 2)),
    Problem("sparse", 2, 3, 5, (6, 5), (3, 3), (5, 5), (1, 1), (0, 0), (2, 2)),
]


@pytest.fixture(params=["whole", "sampled"])
def comparison(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sampled":
        monkeypatch.setattr(bench_verify, "WHOLE_MULTIPLY_ADDS", 0)
        monkeypatch.setattr(bench_verify, "_MOST_POSITIONS", 256)
    return request.param


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_verification_accepts_right_and_refuses_wrong_results(
    problem: Problem, dtype: torch.dtype, comparison: str
) -> None:
    x = problem.make_input(dtype).requires_grad_()
    weight = problem.make_weight(dtype).requires_grad_()
    bias = problem.make_bias(dtype)
    output = FUNCTIONS[problem.rank](x, weight, bias, **problem.arguments())
    grad_output = torch.randn_like(output)
    grads = torch.autograd.grad(output, (x, weight), grad_output)

    def forward(result: torch.Tensor) -> bool:
        return all(c.passed for c in bench_verify.check_forward(problem, x, weight, bias, result, tf32=False))

    def backward(grad_input: torch.Tensor, grad_weight: torch.Tensor) -> bool:
        checks = bench_verify.check_backward(problem, x, weight, grad_output, grad_input, grad_weight, tf32=False)
        return all(c.passed for c in checks)

    def spoilt(tensor: torch.Tensor, value: float) -> torch.Tensor:
        copy = tensor.detach().clone()
        copy.view(-1)[0] += value
        return copy

    assert forward(output)
    assert not forward(spoilt(output, 1e-3))
    assert not forward(spoilt(output, math.nan))
    assert not forward(output.detach()[..., :-1])
    assert backward(*grads)
    assert not backward(spoilt(grads[0], 1e-3), grads[1])
    assert not backward(grads[0], spoilt(grads[1], 1e-3))
    if comparison == "sampled":
        # An element that no sample meets is still noticed when it was never written.
        hole = output.detach().clone()
        hole.view(-1)[hole.numel() // 2] = math.nan
        assert not forward(hole)


def test_limits_grow_with_the_arithmetic() -> None:
    strict = bench_verify.error_limits(torch.float32, 100, tf32=False)
    tf32 = bench_verify.error_limits(torch.float32, 100, tf32=True)
    half = bench_verify.error_limits(torch.float16, 100, tf32=False)
    double = bench_verify.error_limits(torch.float64, 100, tf32=False)
    assert double[0] < 1e-14 < strict[0] < 1e-5 < tf32[0] < 1.1e-3
    assert 2**-11 <= half[0] < 1e-3


def test_the_smallest_steps_of_fp16_are_no_error() -> None:
    limits = bench_verify.error_limits(torch.float16, 4, tf32=False)
    exact = torch.tensor([1.0, 3.3e-7, -2.4e-7], dtype=torch.float64)
    rounded = exact.to(torch.float16)
    assert bench_verify.compare("output", rounded, exact, exact.abs(), limits).passed
    off = rounded + torch.tensor([0.0, 2.0**-24, 0.0], dtype=torch.float16)
    assert not bench_verify.compare("output", off, exact, exact.abs(), limits).passed


def test_timing_tells_slow_from_fast() -> None:
    slow, fast = time_interleaved([lambda: time.sleep(4e-3), lambda: None], torch.device("cpu"), budget_seconds=0.1)
    assert slow.median > 3.9e-3 > fast.median
    assert slow.rounds == fast.rounds >= 7


def test_summary_of_samples() -> None:
    timing = summarize([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (timing.fastest, timing.lower_quartile, timing.median, timing.upper_quartile) == (1.0, 2.0, 3.0, 4.0)
    assert timing.spread == pytest.approx(1 / 3)


def test_floor_is_the_largest_limit() -> None:
    problem = Problem("p", 1, 2, 3, (10,), (4,), (2,), (0,), (0,), (1,))
    assert problem.elements == 20 + 24 + 66
    assert problem.multiply_adds == 240

    def floor(copy: float, rate: float, launch: float) -> tuple[float, str]:
        return Limits(copy, launch, {"float32": rate}).floor(problem, 4, "float32", backward=False)

    assert floor(440.0, 1e12, 0.0) == (1.0, "bandwidth")
    assert floor(1e12, 240.0, 0.0) == (2.0, "arithmetic")
    assert floor(1e12, 1e12, 3.0) == (3.0, "launch")
    limits = Limits(440.0, 9.0, {"float32": 240.0})
    assert limits.balance(problem, 4, "float32", backward=False) == 2.0
    empty = replace(problem, batch=0)
    assert math.isnan(limits.balance(empty, 4, "float32", backward=False))


def test_shares_of_a_cpu_tell_dense_layers_apart() -> None:
    dense = Problem("dense", 1, 2, 3, (10,), (4,), (2,), (0,), (0,), (1,))
    checks = [Check("output", True, 0.0, 1.0, 0.0, 1.0, 1)]

    def result(name: str, balance: float, share: float, groups: int = 1) -> Result:
        floor_from = "arithmetic" if balance > 1 else "bandwidth"
        timing = Timing(1.0, 1.0, 1.0, 1.0, 7)
        return Result(
            replace(dense, name=name, groups=groups),
            dense,
            checks=checks,
            ours=timing,
            floor=share,
            floor_from=floor_from,
            balance=balance,
        )

    lines = summary(
        [
            result("clear", 9.0, 0.75),
            result("near", 2.0, 0.5),
            result("groups", 9.0, 0.25, groups=2),
            result("memory", 0.5, 0.9),
        ]
    )
    assert lines[0].startswith("3 layers limited by multiply-add rate: median 50%")
    assert lines[0].endswith("1 at 70% or more, lowest 25% (groups)")
    assert lines[1].startswith("1 layers dense and at least 4 times as long in arithmetic as in memory: median 75%")
    assert lines[2].startswith("1 layers limited by copy bandwidth: median 90%")


def test_multiply_adds_are_counted() -> None:
    one = torch.ops.tconv._multiply_adds("float32", 1)
    assert one > 0
    assert torch.ops.tconv._multiply_adds("float32", 1000) == 1000 * one
    with pytest.raises(RuntimeError, match="f32 or f64, got float16"):
        torch.ops.tconv._multiply_adds("float16", 1)
    limits = measure_limits(torch.device("cpu"), torch.float32)
    assert limits.rates["float32"] > 0


@pytest.mark.parametrize("backward", [False, True])
def test_a_run_measures_and_reports(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options = bench.Options(names=["FSRCNN.x4_train", "MaskRCNN.conv5_mask_empty"], device="cpu", seconds=0.01)
    options.backward = backward
    run = bench.Bench(options)
    run.limits = Limits(1e10, 0.0, {"float32": 1e11})
    results = [run.run(problem) for problem in run.problems]
    assert [r.problem.name for r in results] == ["MaskRCNN.conv5_mask_empty", "FSRCNN.x4_train"]
    for result in results:
        assert result.passed, bench_report.error_text(result)
        assert result.ours.median > 0
        assert result.pytorch.median > 0
    assert results[1].checks[0].compared == 16 * 24 * 24
    assert 0 < results[1].checks[0].norm < results[1].checks[0].norm_limit
    assert results[1].difference < 1e-4

    record = json.loads(bench_report.record_text(bench_report.Outcome(run, results).as_record()))
    assert record["results"][1]["ours_seconds"]["median"] == results[1].ours.median
    assert record["settings"]["direction"] == ("backward" if backward else "forward")
    assert {"date", "command", "machine", "versions", "limits"} <= record.keys()

    for rich in (True, False):
        monkeypatch.setattr(bench_report, "has_rich", lambda rich=rich: rich)
        stream = io.StringIO()
        bench_report.print_table(run, results, stream)
        assert "FSRCNN.x4_train" in stream.getvalue()
        assert "geometric mean" in stream.getvalue()


def test_a_wrong_kernel_is_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, weight: torch.Tensor, *args: object, **keywords: object) -> torch.Tensor:
        return F.conv_transpose2d(x, weight * 1.001, *args, **keywords)

    monkeypatch.setitem(bench.OURS, 2, wrong)
    run = bench.Bench(bench.Options(names=["FSRCNN.x4_train"], device="cpu", seconds=0.01))
    result = run.run(run.problems[0])
    assert not result.passed
    assert result.ours is None
    assert "WRONG output" in bench_report.error_text(result)


def test_a_failing_call_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: object, **_keywords: object) -> torch.Tensor:
        raise RuntimeError("out of order")

    monkeypatch.setitem(bench.OURS, 2, failing)
    run = bench.Bench(bench.Options(names=["FSRCNN.x4_train"], device="cpu"))
    result = run.run(run.problems[0])
    assert not result.passed
    assert result.error == "out of order"


def test_cpu_scale_is_said() -> None:
    run = bench.Bench(bench.Options(device="cpu", seconds=0.01))
    assert [p.name for p in run.problems] == ["kb65", "kb69", "kb75"]
    result = bench.Result(problem=run.problems[0].scaled(), original=run.problems[0])
    assert result.scaled
    assert "cut to CPU scale" in " ".join(bench_report.footnotes(run, [result]))


def test_a_busy_machine_is_said() -> None:
    run = bench.Bench(bench.Options(device="cpu"))
    run.load = 1000.0
    assert "do not trust" in bench_report.footnotes(run, [])[0]
    run.load = 0.0
    assert "do not trust" not in bench_report.footnotes(run, [])[0]


def test_plain_progress_prints_lines() -> None:
    stream = io.StringIO()
    with terminal.make_progress(2, stream) as line:
        line.start("a")
        line.finish("a is done")
        line.finish("b is done")
    assert stream.getvalue() == "[1/2] a is done\n[2/2] b is done\n"


def test_text_of_numbers() -> None:
    assert bench_report.seconds_text(1.5) == "1.50 s"
    assert bench_report.seconds_text(0.0123) == "12.3 ms"
    assert bench_report.seconds_text(4.56e-6) == "4.56 us"
    assert bench_report.seconds_text(math.nan) == "-"
    assert bench.geometric_mean([2.0, 8.0, math.nan]) == pytest.approx(4.0)


def test_extra_memory_is_what_a_call_holds_besides_its_result() -> None:
    from tconv.bench_cpu import peak_extra_bytes

    def call() -> torch.Tensor:
        scratch = torch.ones(16 << 20)  # 64 MiB
        return scratch[: 4 << 20].clone()

    extra = peak_extra_bytes(call)
    assert extra is None or 60 << 20 < extra < 80 << 20
