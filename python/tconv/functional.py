"""Transposed convolutions with the signatures of ``torch.nn.functional``."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import _library

IntOrInts = int | Sequence[int]

# Looked up once: they run on every call. What an operator's `__call__` would pass its arguments on to saves a tenth of
# a small call.
_is_compiling = torch.compiler.is_compiling
_tracing_state = torch._C._get_tracing_state
_conv_transpose_numbered = getattr(_library.conv_transpose_numbered, "_op", _library.conv_transpose_numbered)

_INTEGERS = (int, torch.SymInt)
_LARGEST = 2**63 - 1


def _refuse(function: str, argument: str, expected: str, value: object) -> None:
    raise TypeError(f"{function}(): argument '{argument}' must be {expected}, not {type(value).__name__}")


def _ints(function: str, argument: str, value: IntOrInts) -> Sequence[int]:
    """One value or one per axis; how many there must be, the operator knows."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    for item in values:  # a plain loop: this runs on every call
        if type(item) is not int or not -_LARGEST <= item <= _LARGEST:
            break
    else:
        return values
    return [_int(function, argument, "an int or a tuple of ints", item) for item in values]


def _int(function: str, argument: str, expected: str, value: int) -> int:
    if type(value) is int and -_LARGEST <= value <= _LARGEST:
        return value
    if isinstance(value, bool) or not isinstance(value, (*_INTEGERS, numbers.Integral)):
        _refuse(function, argument, expected, value)
    if not -_LARGEST <= value <= _LARGEST:
        raise ValueError(f"{function}(): argument '{argument}' must fit 64 bits, got {value}")
    return value if isinstance(value, _INTEGERS) else int(value)


# Parameters that have been used before, by their values and types, and the numbers that the operators know them by.
_numbers: dict[tuple, int] = {}


def _number_of(key: tuple) -> int | None:
    """The number of parameters that were used before; none for a tracer, whose record must hold the values."""
    if _is_compiling() or _tracing_state() is not None:
        return None
    try:
        return _numbers.get(key)
    except TypeError:  # a list is no key
        return None


def _give_number(key: tuple, parameters: tuple) -> None:
    if _is_compiling() or _tracing_state() is not None:
        return
    plain = all(type(value) is int for group in parameters for value in (group if type(group) is tuple else (group,)))
    if plain:
        number = _library.ops._number(*parameters)
        if number >= 0:
            _numbers[key] = number


def _conv_transpose(
    function: Callable[..., Tensor],
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrInts,
    padding: IntOrInts,
    output_padding: IntOrInts,
    groups: int,
    dilation: IntOrInts,
) -> Tensor:
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            function, (input, weight, bias), input, weight, bias, stride, padding, output_padding, groups, dilation
        )
    key = (
        rank,
        stride,
        stride.__class__,
        padding,
        padding.__class__,
        output_padding,
        output_padding.__class__,
        groups,
        groups.__class__,
        dilation,
        dilation.__class__,
    )
    number = _number_of(key)
    if (
        number is not None
        and isinstance(input, Tensor)
        and isinstance(weight, Tensor)
        and (bias is None or isinstance(bias, Tensor))
        and input.dim() == rank + 2
        and weight.dim() == rank + 2
    ):
        return _conv_transpose_numbered(input, weight, bias, number)
    name = function.__name__
    if not isinstance(input, Tensor):
        _refuse(name, "input", "a Tensor", input)
    if not isinstance(weight, Tensor):
        _refuse(name, "weight", "a Tensor", weight)
    if bias is not None and not isinstance(bias, Tensor):
        _refuse(name, "bias", "a Tensor", bias)
    parameters = (
        _ints(name, "stride", stride),
        _ints(name, "padding", padding),
        _ints(name, "output_padding", output_padding),
        _int(name, "groups", "an int", groups),
        _ints(name, "dilation", dilation),
    )
    dims = input.dim()
    if dims not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"Expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {name}, "
            f"but got input of size: {list(input.shape)}"
        )
    if weight.dim() != rank + 2:
        raise RuntimeError(
            f"Expected {rank + 2}D weight [in_channels, out_channels / groups, kernel...] for {name}, "
            f"but got weight of size: {list(weight.shape)}"
        )
    if dims == rank + 2:
        output = _library.conv_transpose(input, weight, bias, *parameters)
        _give_number(key, parameters)
        return output
    return _library.conv_transpose(input.unsqueeze(0), weight, bias, *parameters).squeeze(0)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts = 0,
    output_padding: IntOrInts = 0,
    groups: int = 1,
    dilation: IntOrInts = 1,
) -> Tensor:
    """As :func:`torch.nn.functional.conv_transpose1d`; the weight is ``[in_channels, out_channels / groups, ...]``."""
    return _conv_transpose(conv_transpose1d, 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts = 0,
    output_padding: IntOrInts = 0,
    groups: int = 1,
    dilation: IntOrInts = 1,
) -> Tensor:
    """As :func:`torch.nn.functional.conv_transpose2d`; the weight is ``[in_channels, out_channels / groups, ...]``."""
    return _conv_transpose(conv_transpose2d, 2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts = 0,
    output_padding: IntOrInts = 0,
    groups: int = 1,
    dilation: IntOrInts = 1,
) -> Tensor:
    """As :func:`torch.nn.functional.conv_transpose3d`; the weight is ``[in_channels, out_channels / groups, ...]``."""
    return _conv_transpose(conv_transpose3d, 3, input, weight, bias, stride, padding, output_padding, groups, dilation)
