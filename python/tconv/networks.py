"""Three networks that train transposed convolutions, for tests (small) and benchmarks (the sizes of their papers)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Network:
    """A model with the shapes of its input and output; the layers are PyTorch's own, see `tconv.convert`."""

    name: str
    model: nn.Module
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    def training_step(
        self,
        optimiser: torch.optim.Optimizer,
        x: torch.Tensor,
        target: torch.Tensor,
        autocast: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Forward (under autocast, if a dtype is given), backward and optimiser; returns the loss."""
        optimiser.zero_grad()
        with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
            loss = nn.functional.mse_loss(self.model(x).float(), target)
        loss.backward()
        optimiser.step()
        return loss.detach()


def dcgan(*, small: bool) -> Network:
    """DCGAN's generator: 64x64 pixels from 100 numbers, batch 128."""
    if small:
        model = nn.Sequential(
            nn.ConvTranspose2d(32, 64, 4, 1, 0),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1),
            nn.Tanh(),
        )
        return Network("DCGAN", model, (16, 32, 1, 1), (16, 3, 16, 16))
    layers: list[nn.Module] = []
    channels = [100, 512, 256, 128, 64]
    for i, (inputs, outputs) in enumerate(itertools.pairwise(channels)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return Network("DCGAN", nn.Sequential(*layers), (128, 100, 1, 1), (128, 3, 64, 64))


class SmallUNet(nn.Module):
    """One level down and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 32, 2, 2)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.relu(self.first(x))
        return self.last(torch.cat((skip, torch.relu(self.up(torch.relu(self.down(skip))))), 1))


class UNetDecoder(nn.Module):
    """From the deepest features up: upsample, join with the encoder's features of that size, two convolutions."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.up = nn.ModuleList()
        self.join = nn.ModuleList()
        for level in reversed(range(levels)):
            channels = width << level
            self.up.append(nn.ConvTranspose2d(2 * channels, channels, 2, 2))
            self.join.append(_two_convolutions(2 * channels, channels))

    def forward(self, x: torch.Tensor, *skips: torch.Tensor) -> torch.Tensor:
        """`skips` come deepest first."""
        for up, join, skip in zip(self.up, self.join, skips, strict=True):
            x = join(torch.cat((skip, up(x)), 1))
        return x


class UNet(nn.Module):
    """Four levels of two convolutions each, as Ronneberger et al. drew it."""

    def __init__(self, width: int = 64, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        inputs = [3, *widths[:-1]]
        self.down = nn.ModuleList(_two_convolutions(a, b) for a, b in zip(inputs, widths, strict=True))
        self.decoder = UNetDecoder(width, levels)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        return self.last(self.decoder(x, *reversed(skips[:-1])))


def _two_convolutions(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(inplace=True),
    )


def unet(*, small: bool) -> Network:
    """A U-Net: 256x256 pixels, batch 8."""
    if small:
        return Network("U-Net", SmallUNet(), (8, 3, 32, 32), (8, 1, 32, 32))
    return Network("U-Net", UNet(), (8, 3, 256, 256), (8, 1, 256, 256))


class _Residual(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.convolution(nn.functional.leaky_relu(x, 0.1))


def vocoder(*, small: bool) -> Network:
    """A generator like HiFi-GAN's (V1, with one residual block a level): 8192 samples from 32 frames, batch 16."""
    if small:
        model = nn.Sequential(
            nn.ConvTranspose1d(40, 32, 16, 8, 4),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(32, 16, 4, 2, 1),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(16, 16, 12, 2, 5, groups=16),
            nn.Conv1d(16, 1, 7, padding=3),
            nn.Tanh(),
        )
        return Network("vocoder", model, (4, 40, 32), (4, 1, 1024))
    layers: list[nn.Module] = [nn.Conv1d(80, 512, 7, padding=3)]
    channels = 512
    for kernel, stride in ((16, 8), (16, 8), (4, 2), (4, 2)):
        layers += [nn.LeakyReLU(0.1)]
        layers += [nn.ConvTranspose1d(channels, channels // 2, kernel, stride, (kernel - stride) // 2)]
        channels //= 2
        layers += [_Residual(channels, dilation) for dilation in (1, 3, 5)]
    layers += [nn.LeakyReLU(0.1), nn.Conv1d(channels, 1, 7, padding=3), nn.Tanh()]
    return Network("vocoder", nn.Sequential(*layers), (16, 80, 32), (16, 1, 8192))


NETWORKS: tuple[Callable[..., Network], ...] = (dcgan, unet, vocoder)
