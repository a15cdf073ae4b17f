"""Converts a U-Net with one line and shows that outputs and gradients stay the same to rounding."""

import torch
from torch import nn

import tconv


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """The usual encoder and decoder with skip connections; each step up is a transposed convolution."""

    def __init__(self, channels: int = 3, classes: int = 2, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.down = nn.ModuleList()
        for inputs, outputs in zip((channels, *widths[:-1]), widths, strict=True):
            self.down.append(double_convolution(inputs, outputs))
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for inputs, outputs in zip(reversed(widths[1:]), reversed(widths[:-1]), strict=True):
            self.up.append(nn.ConvTranspose2d(inputs, outputs, kernel_size=2, stride=2))
            self.merge.append(double_convolution(2 * outputs, outputs))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for index, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if index else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def run(model: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    output = model(images)
    output.square().mean().backward()
    return output.detach(), [parameter.grad.clone() for parameter in model.parameters()]


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False  # compare in full fp32
    model = UNet().to(device)
    images = torch.randn(2, 3, 64, 96, device=device)

    before, gradients_before = run(model, images)
    model = tconv.convert(model)
    after, gradients_after = run(model, images)

    print(model.up)
    difference = float((after - before).norm() / before.norm())
    gradient_difference = max(
        float((a - b).norm() / b.norm()) for a, b in zip(gradients_after, gradients_before, strict=True)
    )
    print(f"relative difference: outputs {difference:.1e}, gradients at most {gradient_difference:.1e}")
    if not (difference < 1e-5 and gradient_difference < 1e-3):
        raise SystemExit("the converted model does not agree with the original")


if __name__ == "__main__":
    main()
