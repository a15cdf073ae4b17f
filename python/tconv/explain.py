"""A problem explained to a person: output size, phases as a lattice, the plan and why others declined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tconv.problems import Problem

DIRECTIONS = ("forward", "grad_input", "grad_weight", "grad_bias")


@dataclass(frozen=True)
class Setting:
    """How a problem is computed: everything that decides about a plan besides the sizes."""

    dtype: str = "float32"
    device: str = "cpu"
    direction: str = "forward"
    bias: bool = False
    channels_last: bool = False
    precision: str = "strict"

    def arguments(self, problem: Problem) -> list[Any]:
        """The problem in this setting as the utility operators take it; its input and output are densely packed."""
        last = self.channels_last or problem.input_strides == "channels_last"
        # A model that passes a channels-last input passes a weight of its own strides.
        weight_strides = problem.weight_strides or ("contiguous" if last and not self.channels_last else "")
        return [
            self.dtype,
            self.device,
            self.direction,
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
            self.bias,
            last,
            self.precision,
            weight_strides,
        ]


def explain(problem: Problem, setting: Setting) -> str:
    """The explanation as text of at most about 100 columns."""
    return torch.ops.tconv._explain(*setting.arguments(problem))


def plan_summary(problem: Problem, setting: Setting) -> str:
    """The plan in one line."""
    return torch.ops.tconv._plan_summary(*setting.arguments(problem))
