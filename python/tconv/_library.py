"""Loads the operators. They live in a shared object beside this file that links no Python."""

from __future__ import annotations

from pathlib import Path

import torch

_SHARED_OBJECT = Path(__file__).absolute().parent / "libtconv_torch.so"

if not _SHARED_OBJECT.exists():
    raise ImportError(f"tconv was not built for PyTorch: {_SHARED_OBJECT} is missing")
torch.ops.load_library(_SHARED_OBJECT)

ops = torch.ops.tconv
conv_transpose = ops.conv_transpose.default
conv_transpose_backward = ops.conv_transpose_backward.default
conv_transpose_kept = ops._conv_transpose_kept.default
planning = ops._planning.default
conv_transpose_numbered = ops._conv_transpose_numbered.default


def info() -> dict[str, list[str]]:
    """What the core says of itself and of the machine: for each key, the values that it has."""
    entries: dict[str, list[str]] = {}
    for line in ops._info().splitlines():
        key, _, value = line.partition("=")
        entries.setdefault(key, []).append(value)
    return entries


def version() -> str:
    return ops._version()
