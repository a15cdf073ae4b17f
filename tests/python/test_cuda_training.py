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


def losses(network: Network, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    optimiser = torch.optim.Adam(network.model.parameters(), lr=1e-3)
    return torch.stack([network.training_step(optimiser, x, target) for _ in range(STEPS)]).cpu()


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
    assert expected[-1] < 0.9 * expected[0], "the network learns nothing"
    # A thousandth of the first loss: the last ones, of a network that knows its few samples by heart, are rounding.
    torch.testing.assert_close(actual, expected, rtol=0.03, atol=1e-3 * expected[0].item())
