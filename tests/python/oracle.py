"""Expected values in float64, and how far from them the arithmetic may end up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F

import tconv

THEIRS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
OURS = {1: tconv.conv_transpose1d, 2: tconv.conv_transpose2d, 3: tconv.conv_transpose3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
REAL_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*REAL_DTYPES, torch.complex64, torch.complex128)


@dataclass(frozen=True)
class Case:
    """One problem; every list has one value per axis."""

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    batch: int = 2
    groups: int = 1
    in_per_group: int = 3
    out_per_group: int = 2
    bias: bool = True
    rank: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "rank", len(self.input))
        for name, default in (("padding", 0), ("output_padding", 0), ("dilation", 1)):
            if not getattr(self, name):
                object.__setattr__(self, name, (default,) * self.rank)

    @property
    def parameters(self) -> dict:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "output_padding": self.output_padding,
            "groups": self.groups,
            "dilation": self.dilation,
        }

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(
            (i - 1) * s - 2 * p + d * (k - 1) + q + 1
            for i, k, s, p, q, d in zip(
                self.input, self.kernel, self.stride, self.padding, self.output_padding, self.dilation, strict=True
            )
        )

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        channels = self.groups * self.in_per_group
        return (
            torch.randn(self.batch, channels, *self.input, dtype=dtype),
            torch.randn(channels, self.out_per_group, *self.kernel, dtype=dtype),
            torch.randn(self.groups * self.out_per_group, dtype=dtype) if self.bias else None,
        )

    def without_output_padding(self) -> Case:
        return replace(self, output_padding=(0,) * self.rank)


def wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None:
        return None
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def unit(dtype: torch.dtype) -> float:
    """Spacing of the numbers around 1."""
    return torch.finfo(dtype).eps


def working_unit(dtype: torch.dtype) -> float:
    """That of the numbers in which sums are made: half precision is summed in fp32."""
    return min(unit(dtype), unit(torch.float32))


def assert_within(actual: torch.Tensor, expected: torch.Tensor, magnitude: torch.Tensor, terms: int) -> None:
    """`magnitude` is the same sum over absolute values: the classic bound for a sum of `terms` products."""
    factor = 4 if actual.is_complex() else 1  # four real products, and parts against the modulus
    summing = (terms + 2) * working_unit(actual.dtype) * magnitude
    bound = factor * (summing + unit(actual.dtype) * expected.abs())
    if actual.dtype == torch.float16:
        bound = bound + 2.0**-24  # below its normal range fp16 is spaced evenly
    error = (wide(actual) - expected).abs()
    assert actual.shape == expected.shape
    assert torch.isfinite(error).all()
    excess = (error - bound).amax().item() if error.numel() else -1.0
    assert excess <= 0, f"error exceeds the bound by {excess:g} (largest error {error.amax().item():g})"


def check_forward(case: Case, x, w, b, actual: torch.Tensor) -> None:
    function = THEIRS[case.rank]
    expected = function(wide(x), wide(w), wide(b), **case.parameters)
    absolute_bias = None if b is None else wide(b).abs()
    magnitude = function(wide(x).abs(), wide(w).abs(), absolute_bias, **case.parameters)
    assert_within(actual, expected, magnitude, terms=case.in_per_group * math.prod(case.kernel) + 1)


def gradients(function, case: Case, x, w, b, dy):
    leaves = [t.detach().requires_grad_() for t in (x, w, b) if t is not None]
    return torch.autograd.grad(function(*leaves, **case.parameters), leaves, dy)


def check_gradients(case: Case, x, w, b, dy, actual) -> None:
    function = THEIRS[case.rank]
    expected = gradients(function, case, wide(x), wide(w), wide(b), wide(dy))
    absolute = [None if t is None else wide(t).abs() for t in (x, w, b, dy)]
    magnitude = gradients(function, case, *absolute)
    terms = (
        case.out_per_group * math.prod(case.kernel),
        case.batch * math.prod(case.input),
        case.batch * math.prod(case.output),
    )
    for got, want, size, count in zip(actual, expected, magnitude, terms, strict=False):
        assert_within(got, want, size, count)
