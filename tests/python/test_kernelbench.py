"""`python -m tconv kernelbench` on a small checkout whose evaluation answers without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tconv import kernelbench
from tconv.cli import main

MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, channels):
        super(Model, self).__init__()
        self.up = nn.ConvTranspose1d(channels, 2, 3)

    def forward(self, x):
        return self.up(x)

def get_inputs():
    return [torch.rand(2, 3, 4)]

def get_init_inputs():
    return [3]
"""

# Imports what the real one does, and hands back what it was asked.
EVALUATION = """
import openai, litellm, dotenv, tqdm, requests
from pydantic import BaseModel

class KernelExecResult(BaseModel):
    compiled: bool = False
    correctness: bool = False
    metadata: dict = {}
    runtime: float = -1.0
    runtime_stats: dict = {}
    ref_runtime: float = -1.0

asked = []

def eval_kernel_against_ref(original, custom, **options):
    if "import tconv" in custom:
        model = {}
        exec(custom, model)
        assert {type(layer).__module__ for layer in model["ModelNew"](3).children()} == {"tconv.modules"}
        assert options["check_for_excessive_speedup"] is False
        print("noise")
        return KernelExecResult(compiled=True, correctness=True, runtime=2.5)
    asked.append((original, custom, options))
    print("noise")
    if len(asked) == 2:
        return KernelExecResult(compiled=True, metadata={"correctness_issue": "Output mismatch", "device": "0"})
    if len(asked) == 3:
        raise RuntimeError("out of memory")
    flag = {"excessive_speedup": True}
    stats = {"mean": 2.0, "std": 0.1, "min": 1.9, "max": 2.4, "hardware": "a GPU"}
    times = {"runtime": 2.0, "runtime_stats": stats, "ref_runtime": 5.0}
    return KernelExecResult(compiled=True, correctness=True, metadata=flag, **times)
"""

CHECKER = """
def validate_kernel_static(code, backend, precision):
    assert (backend, precision) == ("cuda", "fp32")
    return False, ["has a class"] if "class ModelNew" in code else [], ["a warning"]
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for level, name in ((1, "65_conv_transposed_1D_a"), (1, "7_matmul"), (1, "69_conv_transposed_1D_b"),
                        (1, "81_conv_transposed_1D_c"), (2, "3_ConvTranspose1d_Sum")):  # fmt: skip
        folder = tmp_path / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(MODEL)
    package = tmp_path / "src" / "kernelbench"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "eval.py").write_text(EVALUATION)
    (package / "kernel_static_checker.py").write_text(CHECKER)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(kernelbench, "_compile_ahead", lambda paths: None)
    monkeypatch.chdir(tmp_path)  # where verdicts are written
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_its_evaluation_judges_exported_files(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = checkout / "verdicts.json"
    assert main(["kernelbench", str(checkout), "--json", str(output), "--correct-trials", "2"]) == 1
    asked = sys.modules["kernelbench.eval"].asked
    assert len(asked) == 3
    for original, custom, options in asked:
        assert original == MODEL
        assert "class ModelNew(nn.Module):" in custom
        assert options["num_correct_trials"] == 2
        assert options["num_perf_trials"] == 100
        assert options["measure_performance"] is True
    shown = capsys.readouterr().out
    assert "noise" not in shown
    assert "conv_transposed_1D_a" in shown
    assert "2.50x" in shown
    assert "WRONG" in shown
    assert "69: correctness_issue: Output mismatch" in shown
    assert "81: RuntimeError: out of memory" in shown
    assert "65: its static checker says: has a class\n" in shown
    assert "flagged by KernelBench as more than ten times faster, to be looked at: 65" in shown
    assert "1 of 3 correct, 1 faster than PyTorch" in shown
    written = json.loads(output.read_text())
    assert [verdict["correct"] for verdict in written["verdicts"]] == [True, False, False]
    assert written["verdicts"][0]["speedup"] == 2.5
    assert written["verdicts"][0]["spread"] == {"std": 0.1, "min": 1.9, "max": 2.4}


def test_the_library_is_timed_beside(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernelbench", str(checkout), "65", "--library", "--json", "-"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["library_milliseconds"] == 2.5
    assert verdict["library_speedup"] == 2.0
    sys.modules["kernelbench.eval"].asked.clear()
    assert main(["kernelbench", str(checkout), "65", "--library"]) == 0
    shown = capsys.readouterr().out
    assert "library speed-up" in shown
    assert "2.50x     2.500    2.00x" in shown
    assert "noise" not in shown


def test_a_problem_that_cannot_be_exported_does_not_stop_the_others(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkout / "KernelBench" / "level1" / "65_conv_transposed_1D_a.py"
    path.write_text(MODEL.replace("nn.ConvTranspose1d(channels, 2, 3)", "nn.Linear(4, 4)"))
    assert main(["kernelbench", str(checkout), "65", "69"]) == 1
    shown = capsys.readouterr().out
    assert "every verdict is in kernelbench-level1.json" in shown
    assert len(json.loads((checkout / "kernelbench-level1.json").read_text())["verdicts"]) == 2
    assert "65: Model has no transposed convolution" in shown
    assert "1 of 2 correct" in shown


def test_problems_are_named_by_number_and_level(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(kernelbench.find_problems(checkout, 1, [])) == [65, 69, 81]
    assert list(kernelbench.find_problems(checkout, 1, [81])) == [81]
    assert list(kernelbench.find_problems(checkout, 2, [])) == [3]
    assert main(["kernelbench", str(checkout), "7"]) == 2
    assert "level 1 has the problems [65, 69, 81], got [7]" in capsys.readouterr().err
    assert main(["kernelbench", str(checkout), "65", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["level"] == 1


def test_other_folders_and_machines_get_a_sentence(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["kernelbench", str(checkout), "--json", "no/such/folder.json"]) == 2
    assert "no/such/folder.json could not be written: No such file or directory" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["kernelbench", str(checkout)]) == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
    (checkout / "src" / "kernelbench" / "eval.py").unlink()
    assert main(["kernelbench", str(checkout)]) == 2
    assert "has no src/kernelbench/eval.py" in capsys.readouterr().err
