"""`python -m tconv bench --exhaustive`: every way to compute a problem timed, to judge the planner's choice."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from tconv import _library, testing
from tconv.bench import OURS, Bench
from tconv.bench_report import finite, heading, ratio_text, seconds_text
from tconv.bench_verify import Check, check_backward, check_forward, error_limits, terms_of
from tconv.problems import Problem
from tconv.terminal import make_progress

# A choice this close to the best is a good one.
GOOD = 1.10


@dataclass
class Candidate:
    """One family, or one of its cuts."""

    name: str
    seconds: float
    runs: int
    expected_seconds: float
    planned: bool
    description: str
    failure: str

    @classmethod
    def from_line(cls, line: str) -> Candidate:
        """From a line of the operator that races them."""
        name, seconds, runs, expected, planned, description, failure = line.split("\t")
        return cls(name, float(seconds), int(runs), float(expected), planned == "planned", description, failure)


@dataclass
class Contest:
    """The candidates of one problem in one direction; the planner's choice comes first."""

    problem: Problem
    direction: str
    candidates: list[Candidate] = field(default_factory=list)
    error: str = ""

    @property
    def planned(self) -> Candidate | None:
        return next((c for c in self.candidates if c.planned), None)

    @property
    def best(self) -> Candidate | None:
        timed = [c for c in self.candidates if c.seconds > 0]
        return min(timed, key=lambda c: c.seconds, default=None)

    @property
    def ratio(self) -> float:
        """The time of the planner's choice over the best one's."""
        planned, best = self.planned, self.best
        return planned.seconds / best.seconds if planned and best and planned.seconds > 0 else math.nan

    @property
    def good(self) -> bool:
        return self.ratio <= GOOD

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.problem.name,
            "direction": self.direction,
            "error": self.error,
            "ratio": self.ratio,
            "planned": self.planned.name if self.planned else None,
            "best": self.best.name if self.best else None,
            "candidates": [asdict(candidate) for candidate in self.candidates],
        }


def run_contests(bench: Bench, original: Problem) -> list[Contest]:
    """Forward, or both gradients: candidates timed, and the results of all of them verified."""
    problem = bench.size_to_run(original)
    directions = ("grad_input", "grad_weight") if bench.options.backward else ("forward",)
    contests = []
    for direction in directions:
        contest = Contest(problem, direction)
        try:
            _run_contest(bench, contest)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            contest.error = str(error).splitlines()[0]
        contests.append(contest)
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return contests


def _run_contest(bench: Bench, contest: Contest) -> None:
    problem, direction = contest.problem, contest.direction
    if math.prod(problem.output_shape) == 0:
        return  # nothing to compute
    x, weight, bias = bench.make_tensors(problem)
    parameters = tuple(
        problem.arguments()[name] for name in ("stride", "padding", "output_padding", "groups", "dilation")
    )
    grad_output = None
    if direction != "forward":
        make = {"dtype": bench.dtype, "device": bench.device, "generator": bench.generator}
        grad_output = torch.randn(problem.output_shape, **make)
    lines = _library.ops._race(x, weight, bias, grad_output, *parameters, direction, bench.options.cuts)
    contest.candidates = [Candidate.from_line(line) for line in lines.splitlines()]

    def compute() -> torch.Tensor:
        if direction == "forward":
            return OURS[problem.rank](x, weight, bias, **problem.arguments())
        mask = [direction == "grad_input", direction == "grad_weight", False]
        gradients = _library.conv_transpose_backward(grad_output, x, weight, *parameters, mask)
        return gradients[mask.index(True)]

    def checks(result: torch.Tensor) -> list[Check]:
        if direction == "forward":
            return check_forward(problem, x, weight, bias, result, tf32=bench.tf32)
        grads = (result, torch.zeros_like(weight)) if direction == "grad_input" else (torch.zeros_like(x), result)
        found = check_backward(problem, x, weight, grad_output, *grads, tf32=bench.tf32)
        return [check for check in found if check.what == direction]

    _verify(contest, compute, checks, _norm_limit(bench, problem, direction))


def _norm_limit(bench: Bench, problem: Problem, direction: str) -> float:
    """How far apart two right results may be."""
    terms = {
        "forward": terms_of(problem) + 1,
        "grad_input": problem.out_channels // problem.groups * math.prod(problem.kernel),
        "grad_weight": problem.batch * math.prod(problem.input),
    }
    return 2 * error_limits(bench.dtype, terms[direction], tf32=bench.tf32)[0]


def _verify(
    contest: Contest,
    compute: Callable[[], torch.Tensor],
    checks: Callable[[torch.Tensor], list[Check]],
    limit: float,
) -> None:
    """The planner's result against fp64, the others against the planner's, on the device. A wrong one has no time."""
    reference: torch.Tensor | None = None
    for candidate in contest.candidates:
        if candidate.failure:
            continue
        with testing.force_family(candidate.name):
            result = compute()
        if reference is None:
            wrong = [check for check in checks(result) if not check.passed]
            if wrong:
                contest.error = f"WRONG {candidate.name}: {wrong[0].problem} (norm {wrong[0].norm:.1e})"
            reference = result
            continue
        error = float((result - reference).float().norm() / reference.float().norm().clamp_min(1e-30))
        if not error <= limit:  # NaN compares false
            candidate.failure = f"WRONG: differs from {contest.candidates[0].name} by {error:.1e}, limit {limit:.1e}"
            candidate.seconds = 0.0
            contest.error = f"{candidate.name}: {candidate.failure}"


def line_of(contest: Contest) -> str:
    """A contest for the progress display and the table."""
    name = f"{contest.problem.name} {contest.direction}"
    planned, best = contest.planned, contest.best
    if contest.error or planned is None or best is None:
        return f"{name}: {contest.error or 'nothing was timed'}"
    tried = f"{len(contest.candidates)} candidates"
    chosen = f"{planned.name} {seconds_text(planned.seconds)}"
    if len(contest.candidates) == 1:
        return f"{name}: {chosen}, the only candidate"
    if best is planned:
        return f"{name}: {chosen}, the best of {tried}"
    return f"{name}: {chosen}, best {best.name} {seconds_text(best.seconds)}, {ratio_text(contest.ratio)} of {tried}"


def summary(contests: list[Contest]) -> str:
    """The verdict in one line."""
    timed = [contest for contest in contests if math.isfinite(contest.ratio)]
    good = sum(contest.good for contest in timed)
    return f"choice within {GOOD - 1:.0%} of the best on {good} of {len(timed)}"


def print_contests(bench: Bench, contests: list[Contest], stream: IO[str]) -> None:
    """Worst choices first, then the verdict."""
    cuts = bench.options.cuts
    lines = [heading(bench)[0], f"every candidate timed, up to {cuts} cuts of a family; worst choices first", ""]
    ordered = sorted(contests, key=lambda c: -c.ratio if math.isfinite(c.ratio) else -math.inf)
    lines += [line_of(contest) for contest in ordered]
    print("\n".join([*lines, "", summary(contests)]), file=stream)


def exhaustive_json(bench: Bench, contests: list[Contest]) -> str:
    """Every number of the run, a line for each contest."""
    record = {**bench.describe(), "summary": summary(contests)}
    head = json.dumps(finite(record), indent=1).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(finite(contest.as_dict())) for contest in contests)
    return f'{head},\n "contests": [\n{lines}\n ]\n}}'


def run_exhaustive(bench: Bench, *, json_target: str | None) -> int:
    """Runs, shows, and returns the exit code: 1 if a result is wrong or a problem failed."""
    stream = sys.stderr if json_target == "-" else sys.stdout
    contests: list[Contest] = []
    with make_progress(len(bench.problems), sys.stderr) as line:
        for problem in bench.problems:
            line.start(problem.name)
            found = run_contests(bench, problem)
            contests += found
            line.finish("; ".join(map(line_of, found)))
    print_contests(bench, contests, stream)
    if json_target == "-":
        print(exhaustive_json(bench, contests))
    elif json_target is not None:
        Path(json_target).write_text(exhaustive_json(bench, contests) + "\n", encoding="utf-8")
        print(f"written: {json_target}", file=stream)
    return 1 if any(contest.error for contest in contests) else 0
