"""Recorded launches as text: parameters by their declarations, and how they depend on the batch."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import pytest
import torch

from exported_emulation import ROOT
from tconv import export_record, exporter
from tconv.explain import Setting
from tconv.problems import Problem, select_problems


@pytest.mark.parametrize("name", ["kb57", "kb64", "kb72", "kb73", "kb77", "kb81", "BigVGAN*", "UNet.up3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_depend_on_the_batch_as_stated(name, dtype):
    """What the planner records for other batches is what the expressions say, wherever it chooses the same kernel."""
    problem = select_problems([name])[0]
    compared = 0
    for direction in export_record.DIRECTIONS:
        question = {"gpu": "hopper", "direction": direction, "dtype": dtype, "precision": "tf32", "bias": False}
        base = export_record.record(problem, **question)
        for batch in (1, problem.batch + 1, 3 * problem.batch):
            other = export_record.record(replace(problem, batch=batch), **question)
            for one, two in zip(base.launches, other.launches, strict=False):
                if one.config != two.config or one.entry not in export_record.BATCH_RULES:
                    continue
                compared += 1
                fixed = set(export_record.BATCH_RULES[one.entry].members)
                values, others = export_record.launch_values(one), export_record.launch_values(two)
                varies = {name.split("[")[0] for name in fixed} | {"parts"}
                varies |= set(export_record.BATCH_STRIDES) if batch == 1 or problem.batch == 1 else set()
                for member, value in values.items():
                    assert value == others[member] or member in varies, (one.entry, member, value, others[member])
                if export_record.BATCH_RULES[one.entry].grid is None and "finish" not in one.entry:
                    parts = values.get("parts", 1), others.get("parts", 1)
                    assert one.grid[0] * parts[1] == two.grid[0] * parts[0]
    assert compared >= 1


def test_every_kernel_has_a_rule():
    recorded = set(re.findall(r'{"(tconv_\w+)", {sizeof', (ROOT / "src" / "cuda" / "record.cpp").read_text()))
    for_any_layer = {"tconv_general", "tconv_general_weight", "tconv_general_weight_finish", "tconv_grad_bias"}
    assert recorded - for_any_layer == set(export_record.BATCH_RULES)


def test_structures_are_read_by_their_declarations():
    text = (
        "struct Inner {\n  int a;\n  long long b[2];  // a comment; with a semicolon\n};\n"
        "struct Outer {\n  const void* first;\n  int x, y;\n  Inner inner[2];\n  float* last;\n};\n"
    )
    distance = export_record.MARKER_DISTANCE
    inner = struct.pack("<iiqq", 1, 0, 2, 3)
    data = struct.pack("<Qii", distance + 8, 4, 5) + inner + inner + struct.pack("<Q", 5 * distance)
    values = {field.name: value for field, value in export_record.read_parameters("Outer", data, text)}
    assert values == {
        "first": "at(tensors.input, 8)",
        "x": 4,
        "y": 5,
        "inner": [[1, [2, 3]], [1, [2, 3]]],
        "last": "static_cast<float*>(tensors.workspace)",
    }
    with pytest.raises(ValueError, match="must point at a marker"):
        export_record.read_parameters("Outer", data[:-8] + struct.pack("<Q", 9 * distance), text)


def test_parameters_are_those_of_the_branch_that_is_compiled():
    text = (
        "#define kWide 1\n#define kMany 2\n#if kWide\nusing Chosen = Wide;\n#ifdef OTHER\nint a;\n#endif\n#else\n"
        "using Chosen = Narrow;\n#ifdef OTHER\nint b;\n#endif\n#endif\n#if kMany\nint c;\n#else\nint d;\n#endif\n"
        "void kernel(const __grid_constant__ Chosen params);\n"
    )
    assert export_record.parameter_type("kernel", export_record.taken_branches(text)) == "Wide"
    narrow = export_record.taken_branches(text.replace("kWide 1", "kWide 0"))
    assert export_record.parameter_type("kernel", narrow) == "Narrow"
    assert [name for name in "abcd" if f"int {name};" in narrow] == ["b", "c", "d"]  # what is not known stays


def test_long_lines_are_broken_and_mean_the_same():
    numbers = ", ".join(map(str, range(100)))
    text = export_record.wrap(f'int a[] = {{{numbers}}};\n#define A {{{numbers}}}\nasm("{numbers}");')
    assert max(map(len, text.splitlines())) <= 120
    assert text.replace("\\\n", "").count("99") == 3
    assert text.replace(" \\\n    ", " ").count(numbers) == 1
    assert "".join(text.replace('"\n    "', "").split()).count("".join(numbers.split())) == 2
    assert exporter.raw("x") == 'r"""\nx\n"""\n'


@pytest.mark.parametrize(
    ("view", "strides"),
    [(None, (54, 9, 9, 3, 1)), ("transposed", (9, 45, 9, 3, 1)), ("expanded", (0, 0, 9, 3, 1))],
)
def test_a_plan_knows_how_a_models_weights_lie(view: str | None, strides: tuple[int, ...]):
    sizes = {"batch": 1, "in_channels": 5, "out_channels": 6, "input": (4, 4), "kernel": (3, 3), "stride": (1, 1)}
    places = {"padding": (0, 0), "output_padding": (0, 0), "dilation": (1, 1)}
    problem = Problem("view", **sizes, **places, weight_strides=view)
    for direction in ("forward", "grad_input"):
        question = Setting(device="cuda", direction=direction).arguments(problem)
        texts = torch.ops.tconv._record_launches("hopper", "general", *question)
        channels = strides[:2] if direction == "forward" else strides[1::-1]
        assert struct.pack("<5q", *channels, *strides[2:]).hex() in texts[-1]
    with pytest.raises(RuntimeError, match="weight_strides must be empty, contiguous, transposed or expanded"):
        torch.ops.tconv._record_launches("hopper", "general", *question[:-1], "sideways")
