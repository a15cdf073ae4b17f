"""What ``torch.vmap`` makes of the operators.

One weight for all samples is a larger batch; one weight per sample is one group per sample; one input for all weights
is more output channels in every group. (These rules are here and not in C++ because the headers that they would need
are not part of a PyTorch installation.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._library import conv_transpose, conv_transpose_backward

_GROUPS = 3  # its place among stride, padding, output_padding, groups, dilation


def _front(tensor: Tensor | None, axis: int | None) -> Tensor | None:
    return tensor if tensor is None or axis is None else tensor.movedim(axis, 0)


def _merge(tensor: Tensor, axis: int) -> Tensor:
    """Merges the first axis into ``axis`` as the outer part: [B, .., C, ..] -> [.., B C, ..]."""
    return tensor.movedim(0, axis - 1).flatten(axis - 1, axis)


def _part(tensor: Tensor, axis: int, outer: int) -> Tensor:
    """Splits an axis: [.., B C, ..] -> [.., B, C, ..]."""
    return tensor.unflatten(axis, (outer, tensor.shape[axis] // outer))


def _regrouped(parameters: tuple, batch: int) -> tuple:
    return (*parameters[:_GROUPS], parameters[_GROUPS] * batch, *parameters[_GROUPS + 1 :])


def _sized_like(tensor: Tensor, axis: int, batch: int) -> Tensor:
    """Stands for a tensor of which only the size is read, with the batch merged into an axis."""
    sizes = list(tensor.shape)
    sizes[axis] *= batch
    return tensor.new_empty(sizes)


def _add_bias(output: Tensor, bias: Tensor | None, mapped: bool) -> Tensor:
    """Adds a bias to outputs [B, N, C, ...]."""
    if bias is None:
        return output
    ones = (1,) * (output.dim() - 3)
    return output + bias.reshape(bias.shape[0] if mapped else 1, 1, -1, *ones)


def _vmap_forward(info, in_dims, input, weight, bias, *parameters):
    batch = info.batch_size
    input_mapped, weight_mapped, bias_mapped = (axis is not None for axis in in_dims[:3])
    input, weight, bias = (_front(t, axis) for t, axis in zip((input, weight, bias), in_dims[:3], strict=True))
    if not weight_mapped:
        if input_mapped:
            inner_bias = None if bias_mapped else bias
            output = _part(conv_transpose(_merge(input, 1), weight, inner_bias, *parameters), 0, batch)
            return _add_bias(output, bias, True) if bias_mapped else output, 0
        return _add_bias(conv_transpose(input, weight, None, *parameters).unsqueeze(0), bias, True), 0
    if input_mapped:
        output = conv_transpose(_merge(input, 2), _merge(weight, 1), None, *_regrouped(parameters, batch))
        output = _part(output, 1, batch).movedim(1, 0)
    else:
        output = conv_transpose(input, _merge(weight, 2), None, *parameters)  # [N, G B C, ...]
        output = _part(_part(output, 1, parameters[_GROUPS]), 2, batch).movedim(2, 0).flatten(2, 3)
    return _add_bias(output, bias, bias_mapped), 0


def _vmap_backward(info, in_dims, grad_output, input, weight, *parameters_and_mask):
    *parameters, mask = parameters_and_mask
    batch = info.batch_size
    grad_mapped, input_mapped, weight_mapped = (axis is not None for axis in in_dims[:3])
    grad_output, input, weight = (
        _front(t, axis) for t, axis in zip((grad_output, input, weight), in_dims[:3], strict=True)
    )
    one_input = input[0] if input_mapped else input
    one_weight = weight[0] if weight_mapped else weight
    grouped = _regrouped(tuple(parameters), batch)

    def per_sample(tensor: Tensor, mapped: bool) -> Tensor:
        return _merge(tensor if mapped else tensor.unsqueeze(0).expand(batch, *tensor.shape), 2)

    def grad_input(dy, x, w, parameters):
        return conv_transpose_backward(dy, x, w, *parameters, [True, False, False])[0]

    def grad_weight(dy, x, w, parameters):
        return conv_transpose_backward(dy, x, w, *parameters, [False, True, False])[1]

    grads: list[Tensor | None] = [None, None, None]
    dims: list[int | None] = [None, None, None]
    if mask[0]:
        if weight_mapped:
            sized = _sized_like(one_input, 1, batch)
            every = grad_input(per_sample(grad_output, grad_mapped), sized, _merge(weight, 1), grouped)
            grads[0], dims[0] = _part(every, 1, batch), 1
        elif grad_mapped:
            every = grad_input(_merge(grad_output, 1), _sized_like(one_input, 0, batch), weight, parameters)
            grads[0], dims[0] = _part(every, 0, batch), 0
        else:
            grads[0] = grad_input(grad_output, one_input, weight, parameters)
    if mask[1]:
        if grad_mapped or input_mapped:
            sized = _sized_like(one_weight, 0, batch)
            every = grad_weight(per_sample(grad_output, grad_mapped), per_sample(input, input_mapped), sized, grouped)
            grads[1], dims[1] = _part(every, 0, batch), 0
        else:
            grads[1] = grad_weight(grad_output, input, one_weight, parameters)
    if mask[2]:
        if grad_mapped:
            grads[2], dims[2] = grad_output.sum([1, *range(3, grad_output.dim())]), 0
        else:
            grads[2] = grad_output.sum([0, *range(2, grad_output.dim())])
    return tuple(grads), tuple(dims)


torch.library.register_vmap("tconv::conv_transpose", _vmap_forward)
torch.library.register_vmap("tconv::conv_transpose_backward", _vmap_backward)
