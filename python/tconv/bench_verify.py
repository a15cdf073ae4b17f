"""Results judged against fp64 on the CPU, by norm-wise and element-wise error.

Small problems are compared whole. Of large ones, outputs are sampled (all corners and random positions) and summed from
the definition of the operation, tap by tap, which also shares no code with PyTorch's convolutions.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass

import torch
from torch.nn import functional as F

from tconv.problems import Problem

WHOLE_MULTIPLY_ADDS = 1_000_000_000
_SAMPLED_MULTIPLY_ADDS = 1_500_000_000
_MOST_POSITIONS = 4096
_FEWEST_POSITIONS = 64
_SAMPLED_TAPS = 2

_PYTORCH = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_EPSILON = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_TF32_EPSILON = 2.0**-11


@dataclass
class Check:
    """How far a result is from fp64; `element` is relative to the sum of the magnitudes that were added."""

    what: str
    passed: bool
    norm: float
    norm_limit: float
    element: float
    element_limit: float
    compared: int
    problem: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def error_limits(dtype: torch.dtype, terms: float, *, tf32: bool) -> tuple[float, float]:
    """The norm-wise and element-wise errors that the arithmetic explains for sums of `terms` products.

    Element-wise: the rigorous bound of a sum of rounded products. Norm-wise: rounding errors of random sign add up like
    the square root of their number; four times that is allowed.
    """
    out = _EPSILON[dtype]
    accumulate = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    operands = 2 * _TF32_EPSILON if tf32 and dtype == torch.float32 else 0.0
    element = operands + 1.01 * accumulate * (terms + 1) + out
    norm = operands + 4 * accumulate * math.sqrt(terms + 1) + out
    return norm, element


def compare(
    what: str,
    result: torch.Tensor,
    reference: torch.Tensor,
    magnitude: torch.Tensor,
    limits: tuple[float, float],
) -> Check:
    """Compares a result with its fp64 reference; `magnitude` holds the sums of absolute values.

    What rounding to the dtype's smallest steps explains is left out of `element`: in fp16, half of 2**-24.
    """
    info = torch.finfo(result.dtype)
    half_step = info.smallest_normal * info.eps / 2
    result = result.detach().to("cpu", torch.float64)
    if result.shape != reference.shape:
        problem = f"shape {tuple(result.shape)}, expected {tuple(reference.shape)}"
        return Check(what, False, math.inf, limits[0], math.inf, limits[1], 0, problem)
    if result.numel() == 0:
        return Check(what, True, 0.0, limits[0], 0.0, limits[1], 0)
    difference = (result - reference).abs()
    norm = float(difference.norm() / reference.norm().clamp_min(torch.finfo(torch.float64).tiny))
    beyond = (difference - half_step).clamp_min(0)
    element = float((beyond / magnitude.clamp_min(torch.finfo(torch.float64).tiny)).max())
    finite = bool(torch.isfinite(result).all())
    # NaN compares false, so that an element that was never written fails.
    passed = finite and norm <= limits[0] and element <= limits[1]
    problem = "" if passed else ("not finite" if not finite else "error above what the arithmetic explains")
    return Check(what, passed, norm, limits[0], element, limits[1], result.numel(), problem)


def terms_of(problem: Problem) -> int:
    """Products summed into one output, at most."""
    taps = (
        math.ceil(k * math.gcd(s, d) / s)
        for k, s, d in zip(problem.kernel, problem.stride, problem.dilation, strict=True)
    )
    return problem.in_channels // problem.groups * math.prod(taps)


def check_forward(
    problem: Problem,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    result: torch.Tensor,
    *,
    tf32: bool,
) -> list[Check]:
    """Checks the output of the forward pass."""
    limits = error_limits(x.dtype, terms_of(problem) + 1, tf32=tf32)
    if tuple(result.shape) != problem.output_shape:
        return [compare("output", result, torch.empty(problem.output_shape, dtype=torch.float64), result, limits)]
    if problem.multiply_adds <= WHOLE_MULTIPLY_ADDS:
        x64, w64 = (t.detach().to("cpu", torch.float64) for t in (x, weight))
        b64 = None if bias is None else bias.detach().to("cpu", torch.float64)
        function = _PYTORCH[problem.rank]
        reference = function(x64, w64, b64, **problem.arguments())
        magnitude = function(x64.abs(), w64.abs(), None if b64 is None else b64.abs(), **problem.arguments())
        return [compare("output", result, reference, magnitude, limits)]
    positions = _positions(problem.batch, problem.output, _position_count(problem))
    reference, magnitude = _forward_at(problem, x, weight, bias, positions)
    checks = [compare("output", _gather(result, positions), reference, magnitude, limits)]
    if not bool(torch.isfinite(result.sum(dtype=torch.float32 if result.dtype != torch.float64 else None))):
        # A sum in fp32 of normal data can't overflow: some element is not a number.
        checks.append(Check("output", False, math.nan, limits[0], math.nan, limits[1], result.numel(), "not finite"))
    return checks


def check_backward(
    problem: Problem,
    x: torch.Tensor,
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    grad_input: torch.Tensor,
    grad_weight: torch.Tensor,
    *,
    tf32: bool,
) -> list[Check]:
    """Checks grad_input and grad_weight."""
    input_terms = problem.out_channels // problem.groups * math.prod(problem.kernel)
    weight_terms = problem.batch * math.prod(problem.input)
    input_limits = error_limits(x.dtype, input_terms, tf32=tf32)
    weight_limits = error_limits(x.dtype, weight_terms, tf32=tf32)
    if problem.multiply_adds <= WHOLE_MULTIPLY_ADDS:
        tensors = [t.detach().to("cpu", torch.float64) for t in (x, weight, grad_output)]
        reference = _gradients(problem, *tensors)
        magnitude = _gradients(problem, *(t.abs() for t in tensors))
        return [
            compare("grad_input", grad_input, reference[0], magnitude[0], input_limits),
            compare("grad_weight", grad_weight, reference[1], magnitude[1], weight_limits),
        ]
    positions = _positions(problem.batch, problem.input, _position_count(problem))
    checks = [
        compare(
            "grad_input",
            _gather(grad_input, positions),
            *_grad_input_at(problem, weight, grad_output, positions),
            input_limits,
        )
    ]
    all_taps = list(itertools.product(*(range(k) for k in problem.kernel)))
    for tap in {all_taps[0], all_taps[-1], *(all_taps[int(i)] for i in torch.randint(len(all_taps), (_SAMPLED_TAPS,)))}:
        reference, magnitude = _grad_weight_at(problem, x, grad_output, tap)
        checks.append(compare("grad_weight", grad_weight[(..., *tap)], reference, magnitude, weight_limits))
    return checks


def _gradients(
    problem: Problem, x: torch.Tensor, weight: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.detach().requires_grad_()
    weight = weight.detach().requires_grad_()
    output = _PYTORCH[problem.rank](x, weight, None, **problem.arguments())
    grad_input, grad_weight = torch.autograd.grad(output, (x, weight), grad_output)
    return grad_input, grad_weight


def _position_count(problem: Problem) -> int:
    per_position = max(1, problem.in_channels * problem.out_channels // problem.groups * math.prod(problem.kernel))
    return max(_FEWEST_POSITIONS, min(_MOST_POSITIONS, _SAMPLED_MULTIPLY_ADDS // (2 * per_position)))


def _positions(batch: int, space: tuple[int, ...], count: int) -> torch.Tensor:
    """Rows of (sample, position...): the corners of the first and last sample, then random ones."""
    corners = itertools.product({0, batch - 1}, *({0, size - 1} for size in space))
    random = torch.stack([torch.randint(size, (count,)) for size in (batch, *space)], dim=1)
    return torch.cat([torch.tensor(list(corners)), random])


def _gather(tensor: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(positions, channels), in fp64 on the CPU."""
    sample, *space = positions.to(tensor.device).unbind(1)
    return tensor.detach()[(sample, slice(None), *space)].to("cpu", torch.float64)


def _grouped_product(rows: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
    """(p, groups*a) x (groups*a, b) -> (p, groups*b)."""
    blocks = rows.reshape(rows.shape[0], groups, -1)
    matrices = weight.reshape(groups, -1, weight.shape[1])
    return torch.einsum("pga,gab->pgb", blocks, matrices).reshape(rows.shape[0], -1)


def _forward_at(
    problem: Problem,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = weight.detach().to("cpu", torch.float64)
    reference = torch.zeros(len(positions), problem.out_channels, dtype=torch.float64)
    if bias is not None:
        reference += bias.detach().to("cpu", torch.float64)
    magnitude = reference.abs()
    stride, padding, dilation, size = (
        torch.tensor(v) for v in (problem.stride, problem.padding, problem.dilation, problem.input)
    )
    for tap in itertools.product(*(range(k) for k in problem.kernel)):
        reach = positions[:, 1:] + padding - torch.tensor(tap) * dilation
        cell = torch.div(reach, stride, rounding_mode="floor")
        hit = ((cell * stride == reach) & (cell >= 0) & (cell < size)).all(dim=1).nonzero().squeeze(1)
        if len(hit) == 0:
            continue
        rows = _gather(x, torch.cat([positions[hit, :1], cell[hit]], dim=1))
        matrix = weight[(..., *tap)]
        reference[hit] += _grouped_product(rows, matrix, problem.groups)
        magnitude[hit] += _grouped_product(rows.abs(), matrix.abs(), problem.groups)
    return reference, magnitude


def _grad_input_at(
    problem: Problem, weight: torch.Tensor, grad_output: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = weight.detach().to("cpu", torch.float64)
    reference = torch.zeros(len(positions), problem.in_channels, dtype=torch.float64)
    magnitude = torch.zeros_like(reference)
    stride, padding, dilation, size = (
        torch.tensor(v) for v in (problem.stride, problem.padding, problem.dilation, problem.output)
    )
    for tap in itertools.product(*(range(k) for k in problem.kernel)):
        place = positions[:, 1:] * stride - padding + torch.tensor(tap) * dilation
        hit = ((place >= 0) & (place < size)).all(dim=1).nonzero().squeeze(1)
        if len(hit) == 0:
            continue
        rows = _gather(grad_output, torch.cat([positions[hit, :1], place[hit]], dim=1))
        matrix = weight[(..., *tap)].reshape(problem.groups, -1, weight.shape[1]).transpose(1, 2)
        matrix = matrix.reshape(problem.out_channels, -1)
        reference[hit] += _grouped_product(rows, matrix, problem.groups)
        magnitude[hit] += _grouped_product(rows.abs(), matrix.abs(), problem.groups)
    return reference, magnitude


def _grad_weight_at(
    problem: Problem, x: torch.Tensor, grad_output: torch.Tensor, tap: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One tap of grad_weight: a sum over every pixel, in fp64 on the device that holds the tensors."""
    inputs: list[slice] = []
    outputs: list[slice] = []
    axes = zip(problem.input, problem.output, problem.stride, problem.padding, problem.dilation, tap, strict=True)
    for size, length, stride, padding, dilation, k in axes:
        offset = k * dilation - padding
        first = max(0, -(offset // stride))
        last = min(size - 1, (length - 1 - offset) // stride)
        inputs.append(slice(first, max(first, last + 1)))
        begin = first * stride + offset
        outputs.append(
            slice(begin, begin + max(0, last - first) * stride + 1, stride) if last >= first else slice(0, 0)
        )
    shape = (problem.in_channels, problem.out_channels // problem.groups)
    reference = torch.zeros(shape, dtype=torch.float64, device=x.device)
    magnitude = torch.zeros_like(reference)
    for sample in range(problem.batch):
        left = x[(sample, slice(None), *inputs)].detach().double().flatten(1)
        right = grad_output[(sample, slice(None), *outputs)].detach().double().flatten(1)
        left = left.reshape(problem.groups, -1, left.shape[1])
        right = right.reshape(problem.groups, -1, right.shape[1]).transpose(1, 2)
        reference += (left @ right).reshape(shape)
        magnitude += (left.abs() @ right.abs()).reshape(shape)
    return reference.cpu(), magnitude.cpu()
