"""The problem file and what tests and benchmarks make of it."""

import json
import math

import pytest
import torch
from torch.nn import functional as F

from tconv import problems
from tconv.problems import Problem

FUNCTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
ALL = problems.load_problems()


def test_the_file_holds_both_suites() -> None:
    assert len(problems.select_problems(suite="kernelbench")) == 17
    assert len(problems.select_problems(suite="models")) == 75
    inference = problems.select_problems(suite="inference")
    assert {p.name for p in inference} == set(problems.INFERENCE_NAMES) and {p.batch for p in inference} == {1}
    assert len(problems.select_problems(suite="all")) == len(ALL) == len({p.name for p in ALL})


def test_the_file_has_one_problem_per_line() -> None:
    text = problems.problem_file().read_text(encoding="utf-8")
    for entry in json.loads(text)["problems"]:
        lines = [line for line in text.splitlines() if f'"name": "{entry["name"]}"' in line]
        assert len(lines) == 1
        assert json.loads(lines[0].rstrip(",")) == entry


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_sizes_agree_with_pytorch(problem: Problem) -> None:
    x = torch.empty(problem.input_shape, device="meta")
    weight = torch.empty(problem.weight_shape, device="meta")
    output = FUNCTIONS[problem.rank](x, weight, **problem.arguments())
    assert tuple(output.shape) == problem.output_shape


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_scaled_keeps_the_layer(problem: Problem) -> None:
    budget = 50_000_000
    small = problem.scaled(budget)
    for field in ("in_channels", "out_channels", "kernel", "stride", "dilation", "padding", "groups", "weight_strides"):
        assert getattr(small, field) == getattr(problem, field)
    assert small.batch == problem.batch or small.batch >= 1
    assert all(0 < size <= full for size, full in zip(small.input, problem.input, strict=True))
    assert all(size >= 1 for size in small.output)
    if small.multiply_adds > budget:
        # Only a layer that is nothing but channels may stay larger.
        assert small.batch == 1
        assert all(size <= 4 for size in small.input)
    assert problem.scaled(math.inf) == problem


def test_scaled_shrinks_the_batch_first() -> None:
    problem = Problem("p", 8, 2, 2, (16, 16), (3, 3), (1, 1), (0, 0), (0, 0), (1, 1))
    assert problem.scaled(problem.multiply_adds // 2).batch == 4
    assert problem.scaled(problem.multiply_adds // 2).input == (16, 16)
    assert problem.scaled(problem.multiply_adds // 32).batch == 1
    assert problem.scaled(problem.multiply_adds // 32).input == (8, 8)


def test_strides_are_those_that_models_pass() -> None:
    (sam,) = problems.select_problems(["SAM.up1_n1"])
    x = sam.make_input()
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert not x.is_contiguous()

    (stylegan,) = problems.select_problems(["StyleGAN2ADA_dense.up8"])
    weight = stylegan.make_weight()
    assert weight.shape == stylegan.weight_shape
    assert not weight.is_contiguous()
    assert weight.transpose(0, 1).is_contiguous()

    (bigvgan,) = problems.select_problems(["*act_C24"])
    weight = bigvgan.make_weight()
    assert weight.shape == bigvgan.weight_shape
    assert weight.stride()[:1] == (0,)

    plain = problems.select_problems(["DCGAN.g3"])[0]
    assert plain.make_input().is_contiguous()
    assert plain.make_weight().is_contiguous()
    assert plain.make_input(channels_last=True).is_contiguous(memory_format=torch.channels_last)
    assert plain.make_weight(channels_last=True).is_contiguous(memory_format=torch.channels_last)


def test_selection() -> None:
    assert [p.name for p in problems.select_problems(["kb7?", "KB65"])][:2] == ["kb65", "kb70"]
    assert [p.name for p in problems.select_problems(problems.DEFAULT_NAMES)] == list(problems.DEFAULT_NAMES)
    with pytest.raises(LookupError, match="did you mean"):
        problems.select_problems(["kb6"])
    with pytest.raises(LookupError, match="suite must be"):
        problems.select_problems(suite="none")


def test_wrong_entries_are_refused() -> None:
    entry = json.loads(problems.problem_file().read_text(encoding="utf-8"))["problems"][0]
    with pytest.raises(ValueError, match="output must be"):
        problems.problem_from({**entry, "output": [1, 1]})
    with pytest.raises(ValueError, match="kernel must have 2 values"):
        problems.problem_from({**entry, "kernel": [3]})
    with pytest.raises(ValueError, match="weight_strides must be"):
        problems.problem_from({**entry, "weight_strides": "sideways"})
