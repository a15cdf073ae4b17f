"""Whole networks, converted with one line: the same outputs and gradients to rounding."""

import copy

import pytest
import torch
from torch import nn

import tconv


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1, self.down2 = block(3, width), block(width, 2 * width)
        self.middle = block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = block(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 3, stride=2, padding=1)
        self.merge1 = block(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(nn.functional.max_pool2d(a, 2))
        c = self.middle(nn.functional.max_pool2d(b, 2))
        b = self.merge2(torch.cat([self.up2(c), b], 1))
        a = self.merge1(torch.cat([self.up1(b, output_size=a.shape[2:]), a], 1))
        return self.head(a)


def dcgan_generator(width=8):
    return nn.Sequential(
        nn.ConvTranspose2d(16, 4 * width, 4, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    )


def vocoder():
    """HiFi-GAN's upsampling: weight-normalised layers with kernel = 2 stride."""
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(16, 8, 16, 8, 4)),
        nn.LeakyReLU(0.1),
        nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(8, 4, 4, 2, 1)),
    )


def volumes():
    return nn.Sequential(nn.Conv3d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose3d(4, 2, 3, 2, 1, 1))


MODELS = {
    "unet": (UNet, (2, 3, 20, 24)),
    "dcgan": (dcgan_generator, (4, 16, 1, 1)),
    "vocoder": (vocoder, (2, 16, 11)),
    "volumes": (volumes, (2, 1, 6, 8, 10)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_converted_model_agrees(name, channels_last, family):
    make, shape = MODELS[name]
    original = make().double()
    x = torch.randn(shape, dtype=torch.float64)
    if channels_last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        if len(shape) == 4:
            original = original.to(memory_format=torch.channels_last)
    converted = tconv.convert(copy.deepcopy(original))
    state, expected_state = converted.state_dict(), original.state_dict()
    assert list(state) == list(expected_state)
    assert all(torch.equal(state[key], expected_state[key]) for key in state)
    ours, theirs = converted(x), original(x)
    torch.testing.assert_close(ours, theirs)
    target = torch.randn_like(theirs)
    (ours - target).square().mean().backward()
    (theirs - target).square().mean().backward()
    for a, b in zip(converted.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
