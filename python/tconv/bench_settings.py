"""PyTorch's other setting: it keeps the first plan that it finds for a shape, so that each needs a process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tconv.bench import Beside, Options
from tconv.bench_timing import Timing


def arguments_of(options: Options, json_path: str, *, training: bool) -> list[str]:
    """The command line that measures the same with cudnn.benchmark on; what was verified is not verified again."""
    command = ["bench", *options.names, "--pytorch", "benchmark", "--verified-elsewhere"]
    for flag, value in (
        ("--suite", options.suite),
        ("--device", options.device),
        ("--dtype", options.dtype),
        ("--threads", options.threads),
        ("--batch", options.batch),
        ("--seconds", options.seconds),
        ("--json", json_path),
    ):
        if value is not None:
            command += [flag, str(value)]
    for flag, wanted in (
        ("--strict", options.strict),
        ("--channels-last", options.channels_last),
        ("--bias", options.bias),
        ("--backward", options.backward),
        ("--full-size", options.full_size),
        ("--training", training),
    ):
        if wanted:
            command.append(flag)
    return command


def measure_with_benchmark(options: Options, *, training: bool) -> dict[str, Any]:
    """The record of a process with cudnn.benchmark on from the start."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        done = subprocess.run(
            [sys.executable, "-m", "tconv", *arguments_of(options, str(path), training=training)],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if not path.exists():
            raise RuntimeError(f"the run with cudnn.benchmark on ended with exit code {done.returncode} and no results")
        return json.loads(path.read_text(encoding="utf-8"))


def timings_beside(record: dict[str, Any]) -> dict[str, Beside]:
    """The timings of such a record by the problem's name, where both sides have one."""
    return {
        result["name"]: Beside(Timing(**result["ours_seconds"]), Timing(**result["pytorch_seconds"]))
        for result in record["results"]
        if result["ours_seconds"] and result["pytorch_seconds"]
    }
