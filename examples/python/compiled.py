"""A DCGAN generator of tconv layers under torch.compile: one graph, any batch size."""

import itertools

import torch
from torch import nn

import tconv


def generator(latent: int = 64, width: int = 32, channels: int = 3) -> nn.Sequential:
    """Five transposed convolutions, from one pixel to 64 x 64."""
    layers: list[nn.Module] = []
    sizes = [latent, 8 * width, 4 * width, 2 * width, width]
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        step = {"stride": 2, "padding": 1} if index else {}
        layers += [
            tconv.ConvTranspose2d(inputs, outputs, 4, bias=False, **step),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, tconv.ConvTranspose2d(width, channels, 4, stride=2, padding=1), nn.Tanh())


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = generator().to(device).eval()
    # fullgraph: an error instead of a silent fallback; dynamic: another batch size compiles nothing new.
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for batch in (4, 7, 16):
        noise = torch.randn(batch, 64, 1, 1, device=device)
        with torch.no_grad():
            images, expected = compiled(noise), model(noise)
        difference = float((images - expected).norm() / expected.norm())
        print(f"batch {batch}: images {tuple(images.shape)}, relative difference from eager mode {difference:.1e}")
        if not difference < 1e-5:
            raise SystemExit("the compiled model does not agree with the eager one")


if __name__ == "__main__":
    main()
