"""KernelBench's own evaluation, its correctness trials and its timing, run on exported files."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tconv import exporter
from tconv.export_source import ExportError
from tconv.terminal import make_progress

NAMES = {1: r"(\d+)_conv_transposed_\w+\.py", 2: r"(\d+)_ConvTranspose\w+\.py"}

# Compiles what an evaluation will ask for first, so that many compilers run at a time.
_COMPILE = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("exported", sys.argv[1])
exported = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exported)
gpu = exported.choose_gpu(torch.cuda.get_device_capability(), exported.toolkit_version())
precision = "tf32" if exported.tf32_allowed() else "strict"
for layer in exported.LAYERS:
    exported.compile_set(exported.pieces_for(exported.FORWARD, layer["sets"][gpu, precision]), gpu)
"""

# Behind a problem's source: its model with the library's layers, to be judged as an exported file is.
_WITH_LIBRARY = """

import tconv

class ModelNew(Model):
    def __init__(self, *args):
        super().__init__(*args)
        tconv.convert(self)
"""


@dataclass
class Verdict:
    """What KernelBench says of one exported file; times in milliseconds."""

    number: int
    name: str
    compiled: bool = False
    correct: bool = False
    milliseconds: float | None = None  # the mean, as KernelBench gives it
    spread: dict[str, Any] = field(default_factory=dict)  # KernelBench's other statistics of the exported file's times
    pytorch_milliseconds: float | None = None
    library_milliseconds: float | None = None
    excessive_speedup: bool = False  # KernelBench's own flag for more than ten times
    objections: list[str] = field(default_factory=list)  # what its static checker forbids
    said: str = ""

    @property
    def speedup(self) -> float | None:
        return _ratio(self.pytorch_milliseconds, self.milliseconds)

    @property
    def library_speedup(self) -> float | None:
        return _ratio(self.pytorch_milliseconds, self.library_milliseconds)


def _ratio(slow: float | None, fast: float | None) -> float | None:
    return slow / fast if slow and fast else None


class _Record:
    """What KernelBench needs of pydantic.BaseModel: a record with defaults."""

    def __init__(self, **values: Any) -> None:
        for kind in reversed(type(self).__mro__):
            for name in inspect.get_annotations(kind):
                setattr(self, name, values.get(name, copy.copy(getattr(kind, name, None))))


def _stand_ins() -> dict[str, dict[str, Any]]:
    """What is imported by KernelBench's package and has no part in verdicts and timing: clients of language models,
    progress bars, settings, and the class of its result record."""
    return {
        "dotenv": {"load_dotenv": lambda *_, **__: False},
        "litellm": {"completion": None},
        "openai": {"OpenAI": None},
        "pydantic": {"BaseModel": _Record},
        "requests": {},
        "tqdm": {"tqdm": lambda items, **_: items},
    }


def import_evaluation(checkout: Path) -> types.ModuleType:
    """`kernelbench.eval` of a checkout, unchanged. Packages that it imports without need may be missing."""
    source = checkout / "src"
    if not (source / "kernelbench" / "eval.py").is_file():
        raise ExportError(f"{checkout} must be a checkout of KernelBench, but has no src/kernelbench/eval.py")
    for name, attributes in _stand_ins().items():
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            module = types.ModuleType(name)
            module.__dict__.update(attributes)
            sys.modules[name] = module
    sys.path.insert(0, str(source))
    try:
        return importlib.import_module("kernelbench.eval")
    except ImportError as error:
        raise ExportError(f"KernelBench's evaluation could not be imported: {error}") from error
    finally:
        sys.path.remove(str(source))


def find_problems(checkout: Path, level: int, numbers: list[int]) -> dict[int, Path]:
    """The transposed-convolution problems of a level, by number."""
    folder = checkout / "KernelBench" / f"level{level}"
    if not folder.is_dir():
        raise ExportError(f"{checkout} must be a checkout of KernelBench, but has no KernelBench/level{level}")
    found = {}
    for path in sorted(folder.glob("*.py")):
        if match := re.fullmatch(NAMES[level], path.name):
            found[int(match[1])] = path
    if not found:
        raise ExportError(f"{folder} has no transposed-convolution problem")
    missing = [number for number in numbers if number not in found]
    if missing:
        raise ExportError(f"level {level} has the problems {sorted(found)}, got {missing}")
    return {number: found[number] for number in sorted(numbers or found)}


def _compile_ahead(paths: list[Path]) -> None:
    """Compiles every file; what fails will fail again, and be reported, in its evaluation."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda path: subprocess.run([sys.executable, "-c", _COMPILE, path], capture_output=True), paths))


def _verdict(
    evaluation: types.ModuleType, number: int, original: Path, custom: str, options: dict[str, Any]
) -> Verdict:
    verdict = Verdict(number, original.stem)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            result = evaluation.eval_kernel_against_ref(
                original.read_text(),
                custom,
                device=torch.device("cuda", torch.cuda.current_device()),
                **options,
            )
    except Exception as error:
        verdict.said = f"{type(error).__name__}: {error}"
        return verdict
    if result is None:
        verdict.said = said.getvalue().strip()
        return verdict
    verdict.compiled, verdict.correct = result.compiled, result.correctness
    verdict.milliseconds = result.runtime if result.runtime > 0 else None
    verdict.spread = {key: result.runtime_stats[key] for key in ("std", "min", "max") if key in result.runtime_stats}
    verdict.pytorch_milliseconds = result.ref_runtime if result.ref_runtime > 0 else None
    verdict.excessive_speedup = bool(result.metadata.get("excessive_speedup"))
    verdict.said = "; ".join(
        f"{key}: {value}" for key, value in result.metadata.items() if key not in ("hardware", "device")
    )
    return verdict


def _objections(text: str) -> list[str]:
    """What KernelBench's static checker, which its scripts ask before an evaluation, finds forbidden in a file."""
    name = "kernelbench.kernel_static_checker"
    if importlib.util.find_spec(name) is None:  # older checkouts
        return []
    _, errors, _ = importlib.import_module(name).validate_kernel_static(text, backend="cuda", precision="fp32")
    return list(errors)


def _library_milliseconds(
    evaluation: types.ModuleType, number: int, original: Path, trials: dict[str, Any]
) -> float | None:
    """What the library's own layers take in the problem's model, by the same function and in the same state as the
    exported file: gradients wanted, one correctness trial before."""
    options = {**trials, "num_correct_trials": 1, "check_for_excessive_speedup": False}
    return _verdict(evaluation, number, original, original.read_text() + _WITH_LIBRARY, options).milliseconds


def _row(verdict: Verdict) -> str:
    number = f"{verdict.number:>4}  {verdict.name.split('_', 1)[1][:58]:58}"
    judged = "correct" if verdict.correct else "WRONG" if verdict.compiled else "FAILED"
    if verdict.speedup is None:
        return f"{number}  {judged}"
    row = f"{number}  {judged:8} {verdict.pytorch_milliseconds:>9.3f} {verdict.milliseconds:>9.3f}"
    row += f" {verdict.speedup:>7.2f}x"
    if verdict.library_speedup is not None:
        row += f" {verdict.library_milliseconds:>9.3f} {verdict.library_speedup:>7.2f}x"
    return row


def evaluate(
    checkout: str | Path,
    *,
    level: int = 1,
    numbers: list[int] | None = None,
    correct_trials: int = 5,
    perf_trials: int | None = 100,
    library: bool = False,
    json_path: str | None = None,
) -> int:
    """Exports every problem, has KernelBench judge it, and prints its verdicts; 0 if all are correct.

    Without a number of `perf_trials` nothing is timed. With `library` the library's own layers are timed beside.
    """
    root = Path(checkout).expanduser()
    problems = find_problems(root, level, numbers or [])
    evaluation = import_evaluation(root)
    if not torch.cuda.is_available():
        raise ExportError("KernelBench's evaluation needs an NVIDIA GPU, and PyTorch finds none")
    trials: dict[str, Any] = {"num_correct_trials": correct_trials, "measure_performance": perf_trials is not None}
    if perf_trials is not None:
        trials["num_perf_trials"] = perf_trials
    verdicts: list[Verdict] = []
    _write(json_path, verdicts, level, trials)
    with tempfile.TemporaryDirectory() as folder, make_progress(len(problems), sys.stderr) as progress:
        progress.start("exporting")
        exported, refused = {}, {}
        for number, path in problems.items():
            try:
                text = exporter.text_of_file(path)
            except ExportError as error:
                refused[number] = Verdict(number, path.stem, said=str(error))
                continue
            exported[number] = Path(folder) / path.name
            exported[number].write_text(text)
        progress.start("compiling")
        _compile_ahead(list(exported.values()))
        for number, path in problems.items():
            progress.start(path.stem)
            if number in refused:
                verdict = refused[number]
            else:
                text = exported[number].read_text()
                verdict = _verdict(evaluation, number, path, text, trials)
                verdict.objections = _objections(text)
            if library and verdict.milliseconds:
                verdict.library_milliseconds = _library_milliseconds(evaluation, number, path, trials)
            verdicts.append(verdict)
            progress.finish(_row(verdict))
            _write(json_path, verdicts, level, trials)
    if json_path == "-":
        print(_json(verdicts, level, trials))
    else:
        _report(verdicts, level, trials)
        if json_path is not None:
            print(f"every verdict is in {json_path}")
    return 0 if all(verdict.correct for verdict in verdicts) else 1


def _report(verdicts: list[Verdict], level: int, trials: dict[str, Any]) -> None:
    title = f"{'':>4}  {'KernelBench level ' + str(level):58}  {'verdict':8} {'PyTorch':>9} {'exported':>9} speed-up"
    if any(verdict.library_speedup for verdict in verdicts):
        title += f" {'library':>9} speed-up"
    lines = [title, *map(_row, verdicts)]
    lines += [f"      {v.number}: {v.said}" for v in verdicts if not v.correct]
    lines += [f"      {v.number}: its static checker says: {'; '.join(v.objections)}" for v in verdicts if v.objections]
    if flagged := [str(v.number) for v in verdicts if v.excessive_speedup]:
        lines.append(f"flagged by KernelBench as more than ten times faster, to be looked at: {', '.join(flagged)}")
    correct = sum(verdict.correct for verdict in verdicts)
    faster = sum((verdict.speedup or 0) > 1 for verdict in verdicts)
    timed = f", {faster} faster than PyTorch (times in ms)" if trials["measure_performance"] else ""
    lines.append(f"{correct} of {len(verdicts)} correct{timed}")
    print("\n".join(lines))


def _write(path: str | None, verdicts: list[Verdict], level: int, trials: dict[str, Any]) -> None:
    """Writes the verdicts so far, after every problem: an interrupted run leaves its own."""
    if path in (None, "-"):
        return
    try:
        Path(path).write_text(_json(verdicts, level, trials) + "\n")
    except OSError as error:
        raise ExportError(f"{path} could not be written: {error.strerror}") from error


def _json(verdicts: list[Verdict], level: int, trials: dict[str, Any]) -> str:
    return json.dumps(
        {
            "level": level,
            **trials,
            "device": torch.cuda.get_device_name(),
            "pytorch": torch.__version__,
            "verdicts": [
                {**asdict(verdict), "speedup": verdict.speedup, "library_speedup": verdict.library_speedup}
                for verdict in verdicts
            ],
        },
        indent=1,
    )
