"""A whole training step (forward, backward, optimiser) of three networks, with tconv's layers and with PyTorch's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import tconv
from tconv.bench_timing import Timing, time_interleaved
from tconv.networks import NETWORKS, Network

# The first losses of the two sides, from the same weights, differ by rounding alone.
_LOSS_TOLERANCE = {None: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class TrainingResult:
    """One network in one precision; times in seconds."""

    network: str
    precision: str
    input_shape: tuple[int, ...]
    ours: Timing | None = None
    pytorch: Timing | None = None
    error: str = ""

    @property
    def speedup(self) -> float:
        return self.pytorch.median / self.ours.median if self.ours and self.pytorch else math.nan

    def as_dict(self) -> dict[str, Any]:
        return {
            "network": self.network,
            "precision": self.precision,
            "input_shape": list(self.input_shape),
            "ours_seconds": self.ours.as_dict() if self.ours else None,
            "pytorch_seconds": self.pytorch.as_dict() if self.pytorch else None,
            "speedup": self.speedup,
            "error": self.error,
        }


def training_count(device: torch.device) -> int:
    """How many results a run yields."""
    return len(NETWORKS) * (2 if device.type == "cuda" else 1)


def run_training(device: torch.device, seconds: float = 1.0) -> Iterator[TrainingResult]:
    """fp32 and bf16 autocast on a GPU; on a CPU small networks in fp32."""
    on_gpu = device.type == "cuda"
    for make in NETWORKS:
        for autocast in (None, torch.bfloat16) if on_gpu else (None,):
            network = make(small=not on_gpu)
            name = "fp32" if autocast is None else "bf16 autocast"
            result = TrainingResult(network.name, name, network.input_shape)
            try:
                _time(network, device, autocast, seconds, result)
            except RuntimeError as error:
                result.error = str(error).splitlines()[0]
            if on_gpu:
                torch.cuda.empty_cache()
            yield result


def _time(
    theirs: Network, device: torch.device, autocast: torch.dtype | None, seconds: float, result: TrainingResult
) -> None:
    theirs.model.to(device)
    ours = replace(theirs, model=tconv.convert(copy.deepcopy(theirs.model)))
    x = torch.randn(theirs.input_shape, device=device)
    target = torch.rand(theirs.output_shape, device=device) - 0.5

    def step(network: Network) -> Callable[[], torch.Tensor]:
        optimiser = torch.optim.Adam(network.model.parameters(), lr=1e-4)
        return lambda: network.training_step(optimiser, x, target, autocast)

    steps = [step(ours), step(theirs)]
    first, expected = (float(step()) for step in steps)
    if not abs(first - expected) <= _LOSS_TOLERANCE[autocast] * abs(expected):
        result.error = f"WRONG: the first loss is {first:.6g}, PyTorch's {expected:.6g}"
        return
    result.ours, result.pytorch = time_interleaved(steps, device, seconds)
