"""A problem explained to a person: output size, phases as a lattice, the plan and why others declined."""

from __future__ import annotations

from typing import Any

import torch

from tconv.problems import Problem

DIRECTIONS = ("forward", "grad_input", "grad_weight", "grad_bias")


def operator_arguments(
    problem: Problem,
    *,
    dtype: str,
    device: str,
    direction: str,
    bias: bool,
    channels_last: bool,
    precision: str,
) -> list[Any]:
    """The problem as the utility operators take it; its tensors are densely packed."""
    return [
        dtype,
        device,
        direction,
        problem.batch,
        problem.in_channels,
        problem.out_channels,
        list(problem.input),
        list(problem.kernel),
        list(problem.stride),
        list(problem.padding),
        list(problem.output_padding),
        list(problem.dilation),
        problem.groups,
        bias,
        channels_last,
        precision,
    ]


def explain(
    problem: Problem,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    direction: str = "forward",
    bias: bool = False,
    channels_last: bool = False,
    precision: str = "strict",
) -> str:
    """The explanation as text of at most about 100 columns."""
    arguments = operator_arguments(
        problem,
        dtype=dtype,
        device=device,
        direction=direction,
        bias=bias,
        channels_last=channels_last,
        precision=precision,
    )
    return torch.ops.tconv._explain(*arguments)


def plan_summary(
    problem: Problem,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    direction: str = "forward",
    bias: bool = False,
    channels_last: bool = False,
    precision: str = "strict",
) -> str:
    """The plan in one line."""
    arguments = operator_arguments(
        problem,
        dtype=dtype,
        device=device,
        direction=direction,
        bias=bias,
        channels_last=channels_last,
        precision=precision,
    )
    return torch.ops.tconv._plan_summary(*arguments)
