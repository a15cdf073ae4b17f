"""Small networks trained with tconv's layers and with PyTorch's follow the same loss curve."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import tconv
from tconv.networks import NETWORKS, Network

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

STEPS = 200


def losses(network: Network, x: torch.Tensor, target: torch.Tensor, seed: int | None = None) -> torch.Tensor:
    """The loss of every step. With a seed, each parameter moves by one unit in its last place at most, at random, after
    every step: what rounding alone can do."""
    model = copy.deepcopy(network.model)
    trained = replace(network, model=model)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = None if seed is None else torch.Generator(x.device).manual_seed(seed)
    values = []
    for _ in range(STEPS):
        values.append(trained.training_step(optimiser, x, target))
        if generator is not None:
            with torch.no_grad():
                for p in model.parameters():
                    units = torch.randint(-1, 2, p.shape, device=p.device, generator=generator)
                    p.mul_(1 + torch.finfo(p.dtype).eps * units)
    return torch.stack(values).cpu()


def rounding(network: Network, x: torch.Tensor, target: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How far PyTorch's own curve moves by rounding, at every step: the furthest of three runs, within five steps,
    since a jump of the loss comes a little earlier or later."""
    moved = torch.stack([(losses(network, x, target, seed) - expected).abs() for seed in (1, 2, 3)]).amax(0)
    return torch.nn.functional.max_pool1d(moved[None, None], 11, 1, 5)[0, 0]


@pytest.mark.parametrize("make", NETWORKS)
@pytest.mark.parametrize("tf32", [True, False])
def test_training_follows_pytorch(make, tf32):
    torch.manual_seed(5)
    theirs = make(small=True)
    theirs.model.cuda()
    ours = replace(theirs, model=tconv.convert(copy.deepcopy(theirs.model)))
    x = torch.randn(theirs.input_shape, device="cuda")
    target = torch.rand(theirs.output_shape, device="cuda") - 0.5
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32):
        expected = losses(theirs, x, target)
        actual = losses(ours, x, target)
        moves = rounding(theirs, x, target, expected)
    assert expected[-1] < 0.9 * expected[0], "the network learns nothing"
    # A thousandth of the first loss: the last ones, of a network that knows its few samples by heart, are rounding.
    # Where rounding alone moves PyTorch's curve, ours may lie a few times as far from it: other kernels round every sum
    # otherwise, not just the last place of a parameter.
    allowed = torch.maximum(0.03 * expected.abs() + 1e-3 * expected[0], 3 * moves)
    worst = ((actual - expected).abs() / allowed).max().item()
    assert worst <= 1, f"{worst:.2f} of what is allowed"
