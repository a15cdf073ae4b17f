"""What the benchmark tells of a CPU alone: memory beyond the tensors, and how near the machine's limits layers come."""

from __future__ import annotations

import ctypes
import gc
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tconv.bench import Result

WANTED_SHARE = 0.7
CLEARLY_ARITHMETIC = 4.0  # times the time of memory: nearer to it, a layer is at both limits at once
MOST_EXTRA_MEMORY = 0.1  # of input plus output


def _resident() -> tuple[int, int]:
    """Bytes of memory that the process holds now, and the most that it held since the last reset."""
    sizes = {}
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key in ("VmRSS", "VmHWM"):
            sizes[key] = int(value.split()[0]) * 1024
    return sizes["VmRSS"], sizes["VmHWM"]


def peak_extra_bytes(call: Callable[[], object], repeats: int = 3) -> int | None:
    """Memory that a call holds at its peak besides the tensors that it returns; None where the system does not tell.

    What the threads keep from earlier calls is there already and does not count again. Results kept for later ones are
    given back first, so that the call gets new memory like any first call. The median of a few calls: a thread that has
    more of the work than before may touch memory of its own for the first time.
    """
    peaks = [_peak_of_one(call) for _ in range(repeats)]
    known = [peak for peak in peaks if peak is not None]
    return int(statistics.median(known)) if known else None


def _peak_of_one(call: Callable[[], object]) -> int | None:
    gc.collect()
    torch.ops.tconv._release_memory()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # freed memory that is still held would be used again unseen
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        before, _ = _resident()
        returned = call()
        _, peak = _resident()
    except (OSError, AttributeError, KeyError):
        return None
    tensors = [returned] if isinstance(returned, torch.Tensor) else returned
    results = sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor)) if isinstance(tensors, Iterable) else 0
    return max(0, peak - before - results)


def summary(results: list[Result]) -> list[str]:
    """Shares of the measured limits, by what limits a layer, and the memory beyond input and output."""
    lines = []
    measured = [r for r in results if r.passed and r.ours]
    dense = [r for r in measured if r.problem.groups == 1 and r.balance >= CLEARLY_ARITHMETIC]
    for name, limited in (
        ("limited by multiply-add rate", [r for r in measured if r.floor_from == "arithmetic"]),
        (f"dense and at least {CLEARLY_ARITHMETIC:.0f} times as long in arithmetic as in memory", dense),
        ("limited by copy bandwidth", [r for r in measured if r.floor_from == "bandwidth"]),
    ):
        shares = {r.problem.name: r.share for r in limited}
        if not shares:
            continue
        reached = sum(share >= WANTED_SHARE for share in shares.values())
        lowest = min(shares, key=shares.__getitem__)
        lines.append(
            f"{len(shares)} layers {name}: median {statistics.median(shares.values()):.0%} of the limit, "
            f"{reached} at {WANTED_SHARE:.0%} or more, lowest {shares[lowest]:.0%} ({lowest})"
        )
    extra = {r.problem.name: share for r in results if (share := r.extra_memory_share) is not None}
    if extra:
        held = torch.ops.tconv._scratch_bytes()
        most = max(extra, key=extra.__getitem__)
        above = sum(share > MOST_EXTRA_MEMORY for share in extra.values())
        lines.append(
            f"peak extra memory: median {statistics.median(extra.values()):.1%} of input + output, "
            f"{above} layers above {MOST_EXTRA_MEMORY:.0%}, most {extra[most]:.0%} ({most}); "
            f"tiles that the threads keep, for all layers together: {held / 2**20:.1f} MiB"
        )
    return lines
