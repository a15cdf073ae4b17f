"""The CUDA text of sets of kernels: a layer in one type, one precision, on one kind of GPU, forward or the gradients.

A set is made of pieces, one for each direction. A piece includes the library's device files by name; an exported file
carries each of these once and puts them in place itself. Every kernel lives in a namespace of its own, with its own
constants in front of the files.
"""

from __future__ import annotations

import functools
import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tconv import export_record
from tconv.export_record import DIRECTIONS, Record

if TYPE_CHECKING:
    from tconv.problems import Problem

ELEMENTS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}

_PARTS = Path(__file__).parent / "export_parts"
_GENERAL_CONFIG = "struct F64; struct F32; struct F16; struct BF16;\n"


@dataclass(frozen=True)
class Piece:
    """One direction of a set: the text that defines it, and what a reader should know of it."""

    text: str
    family: str
    description: str
    most_samples: int


@functools.cache
def part(name: str) -> str:
    """A text of the exported file's own, such as the code that launches the general kernels."""
    return (_PARTS / name).read_text()


@functools.cache
def device_files() -> dict[str, str]:
    """Device code for nvcc, by name: the library's files, and the parts that stand among them."""
    files = {name: for_nvcc(text) for name, text in export_record.kernel_files().items()}
    for name in ("general_host.cuh", "general_weight_host.cuh", "grad_bias_host.cuh"):
        files[name] = part(name)
    return files


def for_nvcc(text: str) -> str:
    """Device code as nvcc wants it.

    NVRTC compiles the library's kernels with everything taken as device code. nvcc has to be told which constants the
    device reads as variables (structures and arrays), and kernels of one name in several namespaces must not be C's.
    """
    text = text.replace('extern "C" __global__', "__global__")
    plain = "int |bool |unsigned |long |double |float "
    text = re.sub(rf"^constexpr (?=(?!{plain})\w+ k\w+ = )", "__device__ constexpr ", text, flags=re.MULTILINE)
    text = re.sub(r"^constexpr (?=\w+ k\w+\[\] = )", "__device__ constexpr ", text, flags=re.MULTILINE)
    return re.sub(r"^#pragma once\n", "", text, flags=re.MULTILINE)


def recorded_piece(problem: Problem, direction: str, found: Record, most: int, *, hopper: bool) -> Piece:
    """A direction whose kernels were made for the problem."""
    kernels, statements = [], []
    for number, launch in enumerate(found.launches, 1):
        namespace = direction if len(found.launches) == 1 else f"{direction}_{number}"
        launch = replace(launch, config=for_nvcc(launch.config))
        kernel, call = export_record.launch_text(launch, f"{namespace}_kernel", problem.batch, may_overlap=hopper)
        kernels.append((launch.shared_bytes, kernel))
        statements.append(call)
    # The kernel that does the work, which has the most shared memory, comes first: ptxas makes other code of it, up to
    # 3% slower, where constants of another one lie in front of its own.
    kernels.sort(key=lambda sized: -sized[0])
    words = textwrap.fill(f"{direction}, {found.family}: {found.description}", 115)
    uses_batch = any("batch" in line.split("//")[0] for call in statements for line in call.splitlines())
    lines = [
        textwrap.indent(words, "// "),
        "\n\n".join(text for _, text in kernels),
        "",
        f"int {direction}(const Tensors& tensors, const Layer& layer, void* stream) {{",
        *(["  const long long batch = layer.batch;"] if uses_batch else []),
        *statements,
        "  return 0;",
        "}",
        "",
        f"long long {direction}_workspace(const Layer&) {{ return {found.workspace_bytes}; }}",
    ]
    text = "\n".join(lines) + "\n"
    return Piece(text, found.family, found.description, most)


def general_piece(direction: str, dtype: str) -> Piece:
    """A direction computed by the kernels that take every layer."""
    config = _GENERAL_CONFIG + f"using Element = {ELEMENTS[dtype]};\nusing Index = long long;\n"
    most = 1 << 40
    if direction == "grad_weight":
        text = f"""\
namespace grad_weight_kernel {{
{config}#include "general_weight.cuh"
#include "general_weight_host.cuh"
}}  // namespace grad_weight_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {{
  return grad_weight_kernel::run(tensors, layer, stream);
}}

long long grad_weight_workspace(const Layer& layer) {{ return grad_weight_kernel::sums_bytes(layer); }}
"""
        return Piece(text, "general", "a warp for 4x4 channels and a tap, pixels in parts", most)
    gradient = direction == "grad_input"
    read, bias, written = ("output", "nullptr", "input") if gradient else ("input", "tensors.bias", "output")
    text = f"""\
namespace {direction}_kernel {{
{config}constexpr int kBundle = 4;
constexpr bool kGradient = {"true" if gradient else "false"};
#include "general.cuh"
#include "general_host.cuh"
}}  // namespace {direction}_kernel

int {direction}(const Tensors& tensors, const Layer& layer, void* stream) {{
  return {direction}_kernel::run(tensors.{read}, tensors.weight, {bias}, tensors.{written}, layer, stream);
}}

long long {direction}_workspace(const Layer&) {{ return 0; }}
"""
    return Piece(text, "general", "a thread per pixel and 4 channels", most)


def bias_text(dtype: str) -> str:
    """The gradient of the bias, for any layer."""
    sums = "F64" if dtype == "float64" else "F32"
    text = ""
    for name, read, written in (("bias_first", ELEMENTS[dtype], sums), ("bias_second", sums, ELEMENTS[dtype])):
        text += f"""\
namespace {name} {{
{_GENERAL_CONFIG}using In = {read};
using Out = {written};
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}}  // namespace {name}

"""
    return text + part("grad_bias.cuh")


# What the C++ part calls, in a set for the forward direction and in one for the gradients.
ENDS = {
    "end_forward": """\
int launch_direction(int, const Tensors& tensors, const Layer& layer, void* stream) {
  return forward(tensors, layer, stream);
}

long long workspace_bytes(int, const Layer& layer) { return forward_workspace(layer); }
""",
    "end_gradients": """\
int launch_direction(int direction, const Tensors& tensors, const Layer& layer, void* stream) {
  switch (direction) {
    case kGradInput: return grad_input(tensors, layer, stream);
    case kGradWeight: return grad_weight(tensors, layer, stream);
    default: return grad_bias(tensors, layer, stream);
  }
}

long long workspace_bytes(int direction, const Layer& layer) {
  switch (direction) {
    case kGradInput: return grad_input_workspace(layer);
    case kGradWeight: return grad_weight_workspace(layer);
    default: return grad_bias_workspace(layer);
  }
}
""",
}


def pieces(problem: Problem, *, gpu: str, dtype: str, precision: str, bias: bool) -> dict[str, Piece]:
    """Each direction's piece of a set for a problem."""
    found = {}
    for direction in DIRECTIONS:
        question = {"gpu": gpu, "direction": direction, "dtype": dtype, "precision": precision, "bias": bias}
        plan = export_record.record_for_any_batch(problem, **question)
        if plan.family == "general":
            found[direction] = general_piece(direction, dtype)
        else:
            most = export_record.most_samples(problem, plan, **question)
            found[direction] = recorded_piece(problem, direction, plan, most, hopper=gpu == "hopper")
    return found


def general_texts(dtype: str) -> dict[str, str]:
    """The pieces for every layer, by name."""
    texts = {direction: general_piece(direction, dtype).text for direction in DIRECTIONS}
    texts["grad_bias"] = bias_text(dtype)
    return {f"{direction}_{ELEMENTS[dtype]}": text for direction, text in texts.items()}
