"""Small networks trained with tconv's layers and with PyTorch's follow the same loss curve."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tconv

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

STEPS = 200


def dcgan() -> tuple[nn.Module, tuple[int, ...], tuple[int, ...]]:
    model = nn.Sequential(
        nn.ConvTranspose2d(32, 64, 4, 1, 0),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1),
        nn.Tanh(),
    )
    return model, (16, 32, 1, 1), (16, 3, 16, 16)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 32, 2, 2)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.relu(self.first(x))
        return self.last(torch.cat((skip, torch.relu(self.up(torch.relu(self.down(skip))))), 1))


def unet() -> tuple[nn.Module, tuple[int, ...], tuple[int, ...]]:
    return UNet(), (8, 3, 32, 32), (8, 1, 32, 32)


def vocoder() -> tuple[nn.Module, tuple[int, ...], tuple[int, ...]]:
    model = nn.Sequential(
        nn.ConvTranspose1d(40, 32, 16, 8, 4),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose1d(32, 16, 4, 2, 1),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose1d(16, 16, 12, 2, 5, groups=16),
        nn.Conv1d(16, 1, 7, padding=3),
        nn.Tanh(),
    )
    return model, (4, 40, 32), (4, 1, 1024)


def losses(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    curve = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimiser.step()
        curve.append(loss.detach())
    return torch.stack(curve).cpu()


@pytest.mark.parametrize("network", [dcgan, unet, vocoder])
@pytest.mark.parametrize("tf32", [True, False])
def test_training_follows_pytorch(network, tf32):
    torch.manual_seed(5)
    model, input_shape, output_shape = network()
    theirs = model.cuda()
    ours = tconv.convert(copy.deepcopy(theirs))
    x = torch.randn(input_shape, device="cuda")
    target = torch.rand(output_shape, device="cuda") - 0.5
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32):
        expected = losses(theirs, x, target)
        actual = losses(ours, x, target)
    assert expected[-1] < 0.9 * expected[0], "the network learns nothing"
    # A thousandth of the first loss: the last ones, of a network that knows its few samples by heart, are rounding.
    torch.testing.assert_close(actual, expected, rtol=0.03, atol=1e-3 * expected[0].item())
