"""The networks of tests and benchmarks: their shapes, and that tconv's layers compute in them."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import tconv
from tconv.networks import NETWORKS

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@pytest.mark.parametrize("make", NETWORKS)
@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
def test_shapes(make, small):
    network = make(small=small)
    assert sum(isinstance(module, TRANSPOSED) for module in network.model.modules()) >= 1
    with torch.device("meta"):
        model = copy.deepcopy(network.model).to("meta")
        assert model(torch.empty(network.input_shape)).shape == network.output_shape


@pytest.mark.parametrize("make", NETWORKS)
def test_a_few_steps_follow_pytorch(make):
    theirs = make(small=True)
    ours = replace(theirs, model=tconv.convert(copy.deepcopy(theirs.model)))
    x, target = torch.randn(theirs.input_shape), torch.rand(theirs.output_shape) - 0.5
    curves = []
    for network in (theirs, ours):
        optimiser = torch.optim.SGD(network.model.parameters(), lr=0.1)
        curves.append(torch.stack([network.training_step(optimiser, x, target) for _ in range(3)]))
    assert curves[0][-1] < curves[0][0]
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-4, atol=1e-6)
