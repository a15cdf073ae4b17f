"""What `python -m tconv info` tells of this build and machine."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

import tconv


def information_rows() -> list[tuple[str, str]]:
    """Names and values, in the order in which they are shown."""
    facts: dict[str, str] = {}
    devices: list[str] = []
    for line in torch.ops.tconv._info().splitlines():
        key, _, value = line.partition("=")
        if key == "cuda_device":
            devices.append(value)
        else:
            facts[key] = value
    cache = facts.get("cache_directory", "")
    return [
        ("tconv", f"{facts.get('version', 'unknown')} ({Path(tconv.__file__).parent})"),
        ("PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}"),
        ("Python", platform.python_version()),
        ("CPU kernels", f"{facts.get('cpu_target', 'unknown')}; {', '.join(torch.ops.tconv._families('cpu'))}"),
        ("threads", f"{torch.get_num_threads()} in PyTorch, {facts.get('cpu_threads', '?')} of the library's own"),
        ("GPUs", ", ".join(devices) or "none"),
        ("CUDA", facts.get("cuda_status", "unknown")),
        ("GPU kernels", ", ".join(torch.ops.tconv._families("cuda")) or "none"),
        ("kernel cache", _cache_text(cache)),
        ("forced family", torch.ops.tconv._forced() or facts.get("forced_family") or "none"),
    ]


def _cache_text(directory: str) -> str:
    if not directory:
        return "none (set TCONV_CACHE_DIR)"
    path = Path(directory)
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else []
    size = sum(file.stat().st_size for file in files)
    tuned = sum(file.suffix == ".plan" for file in files)
    return f"{directory} ({len(files) - tuned} kernels, {tuned} tuned plans, {size / 1e6:.1f} MB)"
