"""Progress, table and JSON of a benchmark run; rich when it is installed, plain text otherwise."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from tconv.bench import Bench, Result, geometric_mean
from tconv.bench_cpu import summary
from tconv.bench_limits import Limits
from tconv.bench_page import page
from tconv.bench_settings import measure_with_benchmark, timings_beside
from tconv.bench_timing import Timing
from tconv.bench_training import TrainingResult, run_training, training_count
from tconv.terminal import has_rich, make_console, make_progress


def seconds_text(seconds: float) -> str:
    """A time with three significant digits and a unit that fits."""
    if not math.isfinite(seconds):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            value = seconds / scale
            digits = 0 if value >= 100 else 1 if value >= 10 else 2
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("unreachable")


def timing_text(timing: Timing | None) -> str:
    """Median and spread."""
    return "-" if timing is None else f"{seconds_text(timing.median)} ±{timing.spread * 100:.0f}%"


def ratio_text(value: float) -> str:
    return f"{value:.2f}x" if math.isfinite(value) else "-"


def share_text(value: float) -> str:
    return f"{value * 100:.0f}%" if math.isfinite(value) else "-"


def error_text(result: Result) -> str:
    """The largest norm-wise error, or what went wrong."""
    if result.error:
        return result.error
    failed = [check for check in result.checks if not check.passed]
    if failed:
        check = failed[0]
        return f"WRONG {check.what}: {check.problem} (norm {check.norm:.1e}, element {check.element:.1e})"
    norms = [check.norm for check in result.checks]
    return f"{max(norms):.1e}" if norms else "-"


def one_line(result: Result) -> str:
    """A result for the progress display."""
    if not result.passed:
        return f"{result.problem.name}: {error_text(result)}"
    return (
        f"{result.problem.name}: {seconds_text(result.ours.median if result.ours else math.nan)}, "
        f"{ratio_text(result.speedup)} PyTorch"
    )


COLUMNS = ("problem", "sizes", "kernel", "tconv", "PyTorch", "benchmark", "speed-up", "of limit", "error")
_LEFT = 3  # the first columns are text
_SIZES = COLUMNS.index("sizes")
_BENCHMARK = COLUMNS.index("benchmark")
_SPEED_UP = COLUMNS.index("speed-up")
_WIDE = 130  # a narrower terminal does without the sizes


def shown_columns(results: list[Result], *, wide: bool = True) -> list[int]:
    """Those that have something to say."""
    hidden = set() if wide else {_SIZES}
    if not any(result.benchmark for result in results):
        hidden.add(_BENCHMARK)
    return [index for index in range(len(COLUMNS)) if index not in hidden]


def table_rows(results: list[Result]) -> list[tuple[str, ...]]:
    """The table's cells as text."""
    return [
        (
            result.problem.name + (" *" if result.scaled else ""),
            result.problem.describe(),
            result.family,
            timing_text(result.ours),
            timing_text(result.pytorch) if not result.pytorch_error else "fails",
            timing_text(result.benchmark.pytorch if result.benchmark else None),
            ratio_text(result.speedup_over_better),
            share_text(result.share),
            error_text(result),
        )
        for result in results
    ]


def mean_row(results: list[Result]) -> tuple[str, ...]:
    means = {
        "problem": "geometric mean",
        "PyTorch": ratio_text(geometric_mean([r.speedup for r in results])),
        "benchmark": ratio_text(geometric_mean([r.benchmark.speedup for r in results if r.benchmark])),
        "speed-up": ratio_text(geometric_mean([r.speedup_over_better for r in results])),
        "of limit": share_text(geometric_mean([r.share for r in results])),
    }
    return tuple(means.get(column, "") for column in COLUMNS)


def heading(bench: Bench) -> list[str]:
    """What was measured, on what, and with which settings."""
    record = bench.describe()
    machine, versions, settings = record["machine"], record["versions"], record["settings"]
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    precision = {"fp32": " (TF32 allowed)" if settings["tf32"] else " (strict)"}.get(settings["dtype"], "")
    timed = "grad_input + grad_weight" if bench.options.backward else "forward"
    cudnn = f", cuDNN {versions['cudnn']}" if versions["cudnn"] else ""
    mode = "cudnn.benchmark on" if settings["cudnn_benchmark"] else "default settings"
    if bench.both_settings:
        mode = "default settings, and cudnn.benchmark on in a process of its own"
    return [
        f"tconv {versions['tconv']} and PyTorch {versions['torch']}{cudnn} ({mode}) on {where}",
        f"timed: {timed}, {settings['dtype']}{precision}, {'with' if bench.options.bias else 'no'} bias, "
        f"layout {settings['layout']}; {record['date']}",
    ]


def limits_line(limits: Limits) -> str:
    """The machine's own limits in words."""
    rates = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in limits.rates.items())
    launch = f", smallest launch {seconds_text(limits.launch)}" if limits.launch else ""
    return f"measured limits: copy {limits.copy / 1e9:.4g} GB/s, arithmetic {rates}{launch}"


def footnotes(bench: Bench, results: list[Result]) -> list[str]:
    """What a reader must know to read the table."""
    notes = []
    if bench.busy:
        notes.append(f"! the machine was busy when the run began (load {bench.load}): do not trust these times")
    if any(result.scaled for result in results):
        notes.append("* cut to CPU scale: fewer samples and less space, the layer's channels and geometry unchanged")
    if any(result.benchmark for result in results):
        notes.append("speed-up: over PyTorch at its better setting; benchmark: cudnn.benchmark on from the start")
    notes.append("of limit: max(bytes / copy bandwidth, operations / matrix rate, launch) over our time;")
    notes.append("error: norm-wise, against fp64; times are medians ± half the distance between the quartiles")
    if bench.device.type == "cpu":
        notes += summary(results)
    return notes


def print_table(bench: Bench, results: list[Result], stream: IO[str]) -> None:
    """The table at the end."""
    if has_rich():
        _print_rich_table(bench, results, stream)
    else:
        _print_plain_table(bench, results, stream)


def _print_rich_table(bench: Bench, results: list[Result], stream: IO[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = make_console(stream)
    for line in heading(bench):
        console.print(Text(line))
    if bench.limits is not None:
        console.print(Text(limits_line(bench.limits)))
    table = Table(show_footer=len(results) > 1, header_style="bold")
    shown = shown_columns(results, wide=console.width >= _WIDE)
    means = mean_row(results)
    for index in shown:
        table.add_column(
            COLUMNS[index],
            footer=means[index],
            justify="left" if index < _LEFT else "right",
            overflow="fold",
            no_wrap=index not in (_SIZES, len(COLUMNS) - 1),
        )
    for result, row in zip(results, table_rows(results), strict=True):
        cells = [Text(cell) for cell in row]
        if not result.passed:
            cells = [Text(cell, style="bold red") for cell in row]
        elif math.isfinite(result.speedup):
            cells[_SPEED_UP].stylize("green" if result.speedup_over_better >= 1 else "yellow")
        table.add_row(*(cells[i] for i in shown))
    console.print(table)
    for line in footnotes(bench, results):
        console.print(Text(line, style="dim"))


def _print_plain_table(bench: Bench, results: list[Result], stream: IO[str]) -> None:
    shown = shown_columns(results)
    rows = [COLUMNS, *table_rows(results)]
    if len(results) > 1:
        rows.append(mean_row(results))
    rows = [tuple(row[i] for i in shown) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(shown) - 1)]
    lines = heading(bench)
    if bench.limits is not None:
        lines.append(limits_line(bench.limits))
    lines.append("")
    for row in rows:
        cells = [cell.ljust(w) if i < _LEFT else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]  # noqa: B905
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    lines += ["", *footnotes(bench, results)]
    print("\n".join(lines), file=stream)


class ProgressLine(Protocol):
    """What a run tells while it works."""

    def start(self, text: str) -> None: ...
    def finish(self, text: str) -> None: ...


@contextmanager
def progress(total: int, stream: IO[str]) -> Iterator[ProgressLine]:
    """A progress bar on a terminal, a line for each step otherwise."""
    with make_progress(total, stream) as line:
        yield line


@dataclass
class Outcome:
    """Everything that one command measured."""

    bench: Bench
    results: list[Result]
    host: list[Timing] | None = None
    training: list[TrainingResult] | None = None
    benchmark: dict[str, Any] | None = None  # the record of the process with cudnn.benchmark on

    def as_record(self) -> dict[str, Any]:
        """What is written as JSON; NaN becomes null."""
        bench, results = self.bench, self.results
        record: dict[str, Any] = bench.describe()
        record["limits"] = bench.limits.as_dict() if bench.limits else None
        record["geometric_mean_speedup"] = geometric_mean([r.speedup for r in results])
        record["geometric_mean_speedup_over_better"] = geometric_mean([r.speedup_over_better for r in results])
        record["geometric_mean_share_of_floor"] = geometric_mean([r.share for r in results])
        if self.host is not None:
            record["host_seconds_per_call"] = {"tconv": self.host[0].as_dict(), "pytorch": self.host[1].as_dict()}
        if self.training is not None:
            record["training"] = [result.as_dict() for result in self.training]
        if self.benchmark is not None and "training" in self.benchmark:
            record["training_with_cudnn_benchmark"] = self.benchmark["training"]
        record["results"] = [result.as_dict() for result in results]
        return finite(record)


def record_text(record: dict[str, Any]) -> str:
    """A record as JSON, a line for each result."""
    head = json.dumps({key: value for key, value in record.items() if key != "results"}, indent=1).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(result) for result in record["results"])
    return f'{head},\n "results": [\n{lines}\n ]\n}}'


def finite(value: Any) -> Any:
    """The value with null in place of what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def training_line(result: TrainingResult) -> str:
    """A training step for the progress display and the end."""
    name = f"training step of {result.network}, {result.precision}"
    if result.error:
        return f"{name}: {result.error}"
    return f"{name}: {timing_text(result.ours)}, PyTorch {timing_text(result.pytorch)}, {ratio_text(result.speedup)}"


def measure(bench: Bench, *, host_overhead: bool, training: bool) -> Outcome:
    """Runs everything that was asked for, with progress on standard error."""
    outcome = Outcome(bench, [])
    steps = len(bench.problems) + 1 + int(host_overhead) + (training_count(bench.device) if training else 0)
    with progress(steps, sys.stderr) as line:
        line.start("the machine's limits")
        line.finish(limits_line(bench.measure_machine()))
        if host_overhead:
            line.start("host overhead")
            outcome.host = bench.host_overhead()
            line.finish("host overhead measured")
        for problem in bench.problems:
            line.start(problem.name)
            outcome.results.append(bench.run(problem))
            line.finish(one_line(outcome.results[-1]))
        if training:
            outcome.training = []
            line.start("training steps")
            for result in run_training(bench.device, bench.options.seconds):
                outcome.training.append(result)
                line.finish(training_line(result))
    if bench.both_settings:
        print("the same with cudnn.benchmark on, in another process", file=sys.stderr)
        outcome.benchmark = measure_with_benchmark(bench.options, training=training)
        beside = timings_beside(outcome.benchmark)
        for result in outcome.results:
            result.benchmark = beside.get(result.problem.name)
    return outcome


def report(outcome: Outcome, stream: IO[str]) -> None:
    """Table and closing lines."""
    print_table(outcome.bench, outcome.results, stream)
    if outcome.host is not None:
        print(
            f"host time of a warm tiny call on {outcome.bench.device}: tconv {timing_text(outcome.host[0])}, "
            f"F.conv_transpose2d {timing_text(outcome.host[1])}",
            file=stream,
        )
    for result in outcome.training or ():
        print(training_line(result), file=stream)


def run_and_report(
    bench: Bench,
    *,
    json_target: str | None,
    host_overhead: bool,
    training: bool = False,
    page_target: str | None = None,
) -> int:
    """Runs the benchmark, shows it, and returns the exit code: 1 if a result is wrong."""
    # With JSON on standard output, everything for people goes to standard error.
    stream = sys.stderr if json_target == "-" else sys.stdout
    outcome = measure(bench, host_overhead=host_overhead, training=training)
    report(outcome, stream)
    record = outcome.as_record()
    if json_target == "-":
        print(record_text(record))
    elif json_target is not None:
        _write(json_target, record_text(record) + "\n", stream)
    if page_target is not None:
        _write(page_target, page(record), stream)
    wrong_steps = any(result.error for result in outcome.training or ())
    return 0 if all(result.passed for result in outcome.results) and not wrong_steps else 1


def _write(target: str, text: str, stream: IO[str]) -> None:
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"written: {target}", file=stream)
