"""The benchmark's other modes: every candidate, both PyTorch settings, training steps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tconv import bench, bench_exhaustive, bench_report, bench_settings, bench_training, cli
from tconv.bench_exhaustive import Candidate, Contest
from tconv.bench_limits import Limits
from tconv.bench_timing import summarize
from tconv.problems import Problem

PROBLEM = Problem("p", 2, 8, 8, (6,), (4,), (2,), (1,), (0,), (1,))


def contest(*seconds: float) -> Contest:
    """The first one is the planner's choice; no time: it failed."""
    names = ["tile", *(f"tile#{i}" for i in range(1, len(seconds)))]
    return Contest(
        PROBLEM,
        "forward",
        [
            Candidate(n, s, 5, 1e-3, i == 0, "cut", "" if s else "no")
            for i, (n, s) in enumerate(zip(names, seconds, strict=True))
        ],
    )


def test_the_verdict_on_the_planner() -> None:
    best, close, far, failed = contest(1e-3, 2e-3), contest(1.09e-3, 1e-3), contest(3e-3, 1e-3), contest(0.0, 1e-3)
    assert [c.good for c in (best, close, far)] == [True, True, False]
    assert best.ratio == 1
    assert far.ratio == pytest.approx(3)
    assert far.best.name == "tile#1"
    assert math.isnan(failed.ratio)
    assert bench_exhaustive.summary([best, close, far, failed]) == "choice within 10% of the best on 2 of 3"
    assert bench_exhaustive.line_of(best) == "p forward: tile 1.00 ms, the best of 2 candidates"
    assert bench_exhaustive.line_of(far) == "p forward: tile 3.00 ms, best tile#1 1.00 ms, 3.00x of 2 candidates"


def test_a_line_of_the_race_is_read() -> None:
    read = Candidate.from_line("tile#2\t1.5e-05\t9\t1.2e-05\tplanned\t4 phases x 64\t")
    assert read == Candidate("tile#2", 1.5e-5, 9, 1.2e-5, True, "4 phases x 64", "")
    assert Candidate.from_line("direct\t0\t0\t0\t\t\tout of memory").failure == "out of memory"


@pytest.mark.parametrize("backward", [False, True])
def test_exhaustive_on_the_cpu(backward: bool, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "bench",
        "FSRCNN.x4_train",
        "MaskRCNN.conv5_mask_empty",
        "--device",
        "cpu",
        "--exhaustive",
        "--json",
        "-",
    ]
    assert cli.main([*arguments, *(["--backward"] if backward else [])]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    timed = [c for c in record["contests"] if c["name"] == "FSRCNN.x4_train"]
    assert [c["direction"] for c in timed] == (["grad_input", "grad_weight"] if backward else ["forward"])
    for c in timed:
        assert c["ratio"] >= 1
        assert c["candidates"][0]["planned"]
        assert c["candidates"][0]["seconds"] > 0
    assert (
        record["summary"] == f"choice within 10% of the best on {sum(c['ratio'] <= 1.1 for c in timed)} of {len(timed)}"
    )
    assert record["summary"] in captured.err
    assert {"date", "command", "machine", "versions"} <= record.keys()


def test_a_candidate_with_a_wrong_result_has_no_time() -> None:
    results = {"tile": torch.ones(4), "tile#1": torch.ones(4) * 1.01, "tile#2": torch.full((4,), math.nan)}
    found = contest(1e-3, 2e-3, 3e-3)

    def compute() -> torch.Tensor:
        return results[torch.ops.tconv._forced()]

    bench_exhaustive._verify(found, compute, lambda _result: [], 1e-3)
    assert [c.seconds for c in found.candidates] == [1e-3, 0.0, 0.0]
    assert "WRONG" in found.candidates[1].failure
    assert "WRONG" in found.error


def parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[bench.Options, dict[str, Any]]:
    """The options that the command line makes of arguments, and what else it asks for."""
    seen: dict[str, Any] = {}

    def note(options: bench.Options) -> None:
        seen["options"] = options

    def run(_bench: object, **keywords: Any) -> int:
        seen["keywords"] = keywords
        return 0

    monkeypatch.setattr(bench, "Bench", note)
    monkeypatch.setattr(bench_report, "run_and_report", run)
    assert cli.main(arguments) == 0
    return seen["options"], seen["keywords"]


def test_the_second_process_is_asked_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = bench.Options(
        names=["kb65", "UNet*"],
        suite="all",
        device="cuda:1",
        dtype="bf16",
        strict=True,
        channels_last=True,
        bias=True,
        backward=True,
        pytorch="both",
        batch=3,
        seconds=0.25,
    )
    arguments = bench_settings.arguments_of(wanted, "out.json", training=True)
    options, keywords = parsed(arguments, monkeypatch)
    different = {
        name: (getattr(wanted, name), getattr(options, name))
        for name in bench.Options.__dataclass_fields__
        if getattr(wanted, name) != getattr(options, name)
    }
    assert different == {"pytorch": ("both", "benchmark"), "verify": (True, False)}
    assert keywords == {"json_target": "out.json", "host_overhead": False, "training": True, "page_target": None}


def test_names_of_dtypes_and_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(["bench", "--dtype", "bfloat16"], monkeypatch)[0].dtype == "bf16"
    assert parsed(["bench", "--dtype", "fp16"], monkeypatch)[0].dtype == "fp16"
    assert parsed(["bench", "--precision", "strict"], monkeypatch)[0].strict
    assert parsed(["bench", "--strict"], monkeypatch)[0].strict
    assert not parsed(["bench"], monkeypatch)[0].strict


def run_of_one() -> tuple[bench.Bench, bench.Result]:
    run = bench.Bench(bench.Options(names=["FSRCNN.x4_train"], device="cpu", seconds=0.01))
    run.limits = Limits(1e10, 0.0, {"float32": 1e11})
    return run, run.run(run.problems[0])


def test_speedups_are_over_the_better_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    run, result = run_of_one()
    alone = bench_report.Outcome(run, [result]).as_record()["results"][0]
    assert alone["with_cudnn_benchmark"] is None
    assert alone["speedup_over_better"] == alone["speedup"]

    # As another process would have written it, with PyTorch twice as slow as we are.
    other = json.loads(bench_report.record_text(bench_report.Outcome(run, [result]).as_record()))
    other["results"][0]["pytorch_seconds"] = summarize([2 * result.ours.median] * 5).as_dict()
    other["results"][0]["ours_seconds"] = summarize([result.ours.median] * 5).as_dict()
    result.benchmark = bench_settings.timings_beside(other)["FSRCNN.x4_train"]
    assert result.benchmark.speedup == pytest.approx(2)
    both = bench_report.Outcome(run, [result]).as_record()["results"][0]
    assert both["speedup_over_better"] == min(both["speedup"], both["with_cudnn_benchmark"]["speedup"])
    for rich in (True, False):
        monkeypatch.setattr(bench_report, "has_rich", lambda rich=rich: rich)
        shown = [bench_report.COLUMNS[i] for i in bench_report.shown_columns([result])]
        assert "benchmark" in shown
    assert "better setting" in " ".join(bench_report.footnotes(run, [result]))


def test_what_is_verified_elsewhere_is_timed_here() -> None:
    run = bench.Bench(bench.Options(names=["FSRCNN.x4_train"], device="cpu", seconds=0.01, verify=False))
    result = run.run(run.problems[0])
    assert result.passed
    assert result.checks == []
    assert result.ours.median > 0


def test_training_steps_are_timed_and_a_wrong_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    results = list(bench_training.run_training(torch.device("cpu"), seconds=0.01))
    assert [r.network for r in results] == ["DCGAN", "U-Net", "vocoder"]
    assert len(results) == bench_training.training_count(torch.device("cpu"))
    for result in results:
        assert result.error == ""
        assert result.speedup > 0
        assert result.as_dict()["ours_seconds"]["median"] > 0

    def spoilt(model: torch.nn.Module) -> torch.nn.Module:
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        return model

    monkeypatch.setattr(bench_training.tconv, "convert", spoilt)
    wrong = next(iter(bench_training.run_training(torch.device("cpu"), seconds=0.01)))
    assert "WRONG" in wrong.error
    assert wrong.ours is None
    assert "WRONG" in bench_report.training_line(wrong)


def test_the_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "folder" / "bench.html"
    arguments = ["bench", "FSRCNN.x4_train", "--device", "cpu", "--seconds", "0.01", "--pytorch", "both"]
    assert cli.main([*arguments, "--html", str(target)]) == 0
    assert "FSRCNN.x4_train" in target.read_text(encoding="utf-8")
    assert f"written: {target}" in capsys.readouterr().out
