"""Layers that inherit everything but the arithmetic from PyTorch's: constructors, parameters, state and repr."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from . import functional
from ._freeze import Freezable, kept_forward


def _forward(
    layer: nn.modules.conv._ConvTransposeNd,
    function: Callable[..., Tensor],
    rank: int,
    input: Tensor,
    output_size: Sequence[int] | None,
) -> Tensor:
    if layer.padding_mode != "zeros":
        raise ValueError(f"Only `zeros` padding mode is supported for {type(layer).__name__}, got {layer.padding_mode}")
    output_padding = layer._output_padding(
        input, output_size, layer.stride, layer.padding, layer.kernel_size, rank, layer.dilation
    )
    if layer.frozen:
        parameters = (layer.stride, layer.padding, tuple(output_padding), layer.groups, layer.dilation)
        output = kept_forward(layer, rank, input, parameters)
        if output is not None:
            return output
    return function(
        input, layer.weight, layer.bias, layer.stride, layer.padding, output_padding, layer.groups, layer.dilation
    )


class ConvTranspose1d(Freezable, nn.ConvTranspose1d):
    """:class:`torch.nn.ConvTranspose1d` computed by tconv."""

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return _forward(self, functional.conv_transpose1d, 1, input, output_size)


class ConvTranspose2d(Freezable, nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d` computed by tconv."""

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return _forward(self, functional.conv_transpose2d, 2, input, output_size)


class ConvTranspose3d(Freezable, nn.ConvTranspose3d):
    """:class:`torch.nn.ConvTranspose3d` computed by tconv."""

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return _forward(self, functional.conv_transpose3d, 3, input, output_size)


class LazyConvTranspose1d(Freezable, nn.LazyConvTranspose1d):
    """:class:`torch.nn.LazyConvTranspose1d`, which becomes a :class:`ConvTranspose1d` at its first input."""

    cls_to_become = ConvTranspose1d
    forward = ConvTranspose1d.forward


class LazyConvTranspose2d(Freezable, nn.LazyConvTranspose2d):
    """:class:`torch.nn.LazyConvTranspose2d`, which becomes a :class:`ConvTranspose2d` at its first input."""

    cls_to_become = ConvTranspose2d
    forward = ConvTranspose2d.forward


class LazyConvTranspose3d(Freezable, nn.LazyConvTranspose3d):
    """:class:`torch.nn.LazyConvTranspose3d`, which becomes a :class:`ConvTranspose3d` at its first input."""

    cls_to_become = ConvTranspose3d
    forward = ConvTranspose3d.forward
