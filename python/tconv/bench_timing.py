"""Two implementations timed side by side: interleaved, with cold caches on a GPU, medians and their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

_FLUSH_BYTES = 256 << 20  # larger than any L2 cache
_FLUSH_WRITES = 6  # long enough for the host to issue the call before the GPU gets to it
_WARM_UP_CALLS = 3
_FEWEST_ROUNDS = 7
_MOST_ROUNDS = 100


@dataclass
class Timing:
    """Seconds: the median and quartiles of `rounds` runs."""

    median: float
    lower_quartile: float
    upper_quartile: float
    fastest: float
    rounds: int

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        return (self.upper_quartile - self.lower_quartile) / 2 / self.median if self.median > 0 else 0.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def summarize(samples: Sequence[float]) -> Timing:
    """Median and quartiles of the samples."""
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, lower, upper, min(samples), len(samples))


class CpuClock:
    """Wall-clock time."""

    def round(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        seconds = []
        for call in calls:
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return seconds


class CudaClock:
    """CUDA events around each call; the host runs ahead while the cache is being flushed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)

    def round(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        events = []
        for call in calls:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(_FLUSH_WRITES):
                self._flush.zero_()
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize(self._device)
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]


def make_clock(device: torch.device) -> CpuClock | CudaClock:
    """The clock that fits the device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def time_interleaved(
    calls: Sequence[Callable[[], object]], device: torch.device, budget_seconds: float = 1.0
) -> list[Timing]:
    """Times the calls in turn (A B A B ...) for about `budget_seconds` together."""
    clock = make_clock(device)
    for _ in range(_WARM_UP_CALLS):
        first = clock.round(calls)
    rounds = int(budget_seconds / max(sum(first), 1e-6))
    rounds = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, rounds))
    samples: list[list[float]] = [[] for _ in calls]
    for index in range(rounds):
        # Whoever comes second may find a warmer machine, so that each comes first every other time.
        order = list(range(len(calls))) if index % 2 == 0 else list(reversed(range(len(calls))))
        for which, seconds in zip(order, clock.round([calls[i] for i in order]), strict=True):
            samples[which].append(seconds)
    return [summarize(column) for column in samples]


def host_seconds_per_call(
    calls: Sequence[Callable[[], object]], device: torch.device, *, batches: int = 31, calls_per_batch: int = 200
) -> list[Timing]:
    """Host time of one warm call: what the processor spends before it can issue the next one."""
    samples: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(calls_per_batch):
            call()
    for index in range(batches):
        order = range(len(calls)) if index % 2 == 0 else reversed(range(len(calls)))
        for which in order:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            call = calls[which]
            begin = time.perf_counter()
            for _ in range(calls_per_batch):
                call()
            samples[which].append((time.perf_counter() - begin) / calls_per_batch)
    return [summarize(column) for column in samples]
