"""Writes one self-contained Python file: a model whose transposed convolutions are tconv's kernels."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tconv
from tconv import export_cuda, export_record
from tconv.export_model import (
    ExportError,
    FoundLayer,
    FoundModel,
    model_of_file,
    model_of_module,
    model_of_problem,
)
from tconv.export_source import defined_names, imported_meanings

if TYPE_CHECKING:
    from torch import nn

    from tconv.export_cuda import Piece
    from tconv.problems import Problem

GPUS = ("hopper", "ampere")
PRECISIONS = ("tf32", "strict")

_MARK = "# Copied from here on.\n"


def export(module: nn.Module, example: Any, path: str | Path) -> None:
    """Writes a file that defines `ModelNew`, a drop-in for the class of `module`.

    `example` is an input (or a tuple of all inputs) of the size to make kernels for; other sizes are computed by
    general kernels. The file imports PyTorch alone and compiles itself with `torch.utils.cpp_extension.load_inline`.
    """
    Path(path).write_text(file_text(model_of_module(module, example)))


def text_of_file(path: Path) -> str:
    """The exported file of a file that defines `Model`, `get_inputs` and `get_init_inputs`."""
    return file_text(model_of_file(path))


def text_of_problem(problem: Problem, *, dtype: str = "float32", bias: bool = False) -> str:
    """The exported file of one layer, by its sizes."""
    return file_text(model_of_problem(problem, dtype, bias))


class _Pieces:
    """The pieces of a file: equal texts are one, under the first name that was asked for."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def add(self, name: str, text: str) -> str:
        for known, other in self.texts.items():
            if other == text:
                return known
        self.texts[name] = text
        return name


def file_text(model: FoundModel) -> str:
    """The whole exported file."""
    pieces = _Pieces()
    pieces.add("begin", '#include "interface.h"\n#include "launch.cuh"\n')
    general = {name: text for dtype in export_cuda.ELEMENTS for name, text in export_cuda.general_texts(dtype).items()}
    for name, text in general.items():
        pieces.add(name, text)
    layers, plans = [], []
    for number, layer in enumerate(model.layers, 1):
        suffix = f"_{number}" if len(model.layers) > 1 else ""
        entry, plan = _layer_entry(layer, pieces, suffix)
        layers.append(entry)
        plans.append(plan)
    own = {name: text for name, text in pieces.texts.items() if name not in general}
    texts = own | export_cuda.ENDS | general  # what was made for the model comes first
    files = export_cuda.device_files() | {name: export_cuda.part(name) for name in ("interface.h", "launch.cuh")}
    used = {name for text in texts.values() for name in export_record.needed_files(text, files)}
    runtime = re.sub(r"  # noqa: E402$", "", export_cuda.part("runtime.py").split(_MARK)[1], flags=re.MULTILINE)
    _require_other_names(model.source, runtime)
    data = [
        "# --- Data " + "-" * 109,
        "# The layers that kernels were made for. Their numbers: channels in and out, groups, and for each axis\n"
        "# (depth, height, width) input, kernel, stride, dilation, padding and output. Their sets: pieces, by GPU and\n"
        "# precision.",
        "LAYERS = [\n" + "".join(layers) + "]\n",
        "HOST = " + raw(export_cuda.part("host.cpp")),
        "# Kernels, each in a namespace of its own, and the functions that launch them.",
        _dictionary("PIECES", texts),
        "# Device code, by the names under which the pieces include it.",
        _dictionary("FILES", {name: files[name] for name in files if name in used}),
    ]
    rule = "# --- The model " + "-" * 104
    return "\n".join([_header(model, plans), runtime, "", rule, "", "", model.source, "", *data])


def _require_other_names(source: str, runtime: str) -> None:
    """Refuses a model whose own names would replace some of the file's."""
    statements = ast.parse(runtime).body
    taken = {"FILES", "PIECES", "LAYERS", "HOST"}.union(*map(defined_names, statements))
    imported = {name: meaning for node in statements for name, meaning in imported_meanings(node).items()}
    for node in ast.parse(source).body:
        meanings = imported_meanings(node)
        both = {name for name in taken & defined_names(node) if imported.get(name, "") != meanings.get(name)}
        if both:
            raise ExportError(f"the exported file has a {min(both)} of its own: give the model's another name")


def raw(text: str) -> str:
    if '"""' in text:
        raise ExportError("device code must not contain three double quotes")
    return f'r"""\n{text.rstrip()}\n"""\n'


def _dictionary(name: str, texts: dict[str, str]) -> str:
    return f"{name} = {{}}\n" + "".join(f'{name}["{key}"] = {raw(text)}' for key, text in texts.items())


def _layer_entry(
    layer: FoundLayer, pieces: _Pieces, suffix: str
) -> tuple[str, dict[tuple[str, str], dict[str, Piece]]]:
    p = layer.problem
    if not math.prod(p.input_shape):
        raise ExportError(f"the example must have at least one channel and one pixel, got the size {p.input_shape}")
    plan: dict[tuple[str, str], dict[str, Piece]] = {}
    sets = ""
    for gpu in GPUS:
        for precision in PRECISIONS:
            try:
                found = export_cuda.pieces(p, gpu=gpu, dtype=layer.dtype, precision=precision, bias=layer.bias)
            except RuntimeError as error:
                raise ExportError(str(error).splitlines()[0]) from error
            plan[gpu, precision] = found
            names = [pieces.add(f"{d}_{gpu}_{precision}{suffix}", piece.text) for d, piece in found.items()]
            names.append(f"grad_bias_{export_cuda.ELEMENTS[layer.dtype]}")
            sets += f'            ("{gpu}", "{precision}"): (\n'
            sets += "".join(f'                "{name}",\n' for name in names) + "            ),\n"
    most = min(piece.most_samples for found in plan.values() for piece in found.values())
    numbers = [p.in_channels, p.out_channels, p.groups]
    axes = zip(p.input, p.kernel, p.stride, p.dilation, p.padding, p.output, strict=True)
    for axis in [(1, 1, 1, 1, 0, 1)] * (3 - p.rank) + list(axes):
        numbers.extend(axis)
    entry = (
        f'    {{\n        "numbers": {numbers},\n        "dtype": "{export_cuda.ELEMENTS[layer.dtype]}",\n'
        f'        "bias": {layer.bias},\n        "most_samples": {most},\n'
        f'        "sets": {{\n{sets}        }},\n    }},\n'
    )
    return entry, plan


# --- The top of the file ---------------------------------------------------------------------------------------------


def _header(model: FoundModel, plans: list[dict[tuple[str, str], dict[str, Piece]]]) -> str:
    title = textwrap.fill(f"{model.origin}: its transposed convolutions as CUDA kernels, in one file.", 116)
    text = f'"""{title}\n'
    text += f"""
ModelNew takes the arguments of the original, has the same parameters from the same seed, and computes the same outputs
and gradients. It needs an NVIDIA GPU, PyTorch 1.13 or later, CUDA 11.7 or later with nvcc, and no other package.
Kernels are compiled by torch.utils.cpp_extension.load_inline when they are first needed, the gradients apart from
forward, and kept on disk by PyTorch. Written by tconv {tconv.__version__} (python -m tconv export).

What follows: Python that compiles, checks and calls (Compiling, Calls, Gradients), the layer in place of
nn.ConvTranspose (The layer), the model itself (The model), and the CUDA source (Data): PIECES has, for each direction
and kind of GPU, the constants of a layer's kernels and the function that launches them, FILES the device code that
they include.

The index mathematics. Along each axis, with input length I, kernel K, stride s, padding p, output padding q and
dilation d,

    O = (I - 1) s - 2 p + d (K - 1) + q + 1
    y[o] = b + sum of x[i] w[k] over the taps k with  o + p = i s + k d  and  0 <= i < I

The weight is [in_channels, out_channels / groups, K...]. Write o + p = c s + r: the cell c and the residue r. With
g = gcd(s, d), taps reach o only if g divides r; they are k = k0 + t (s / g), t = 0, 1, ..., and tap k reads
i = (o + p - k0 d) / s - t (d / g). So every residue, a phase, is a dense correlation of its own few taps, and no zeros
are inserted anywhere. The gradient of the input is the same map read the other way, dx[i] = sum over k of
w[k] dy[i s - p + k d]; the gradient of the weight is dw[k] = sum over samples and i of x[i] dy[i s - p + k d]; that of
the bias is the sum of dy.
"""
    for layer, plan in zip(model.layers, plans, strict=True):
        text += "\n" + _layer_words(layer, plan)
    text += "\nThe kinds of kernel:\n" + _family_words(plans)
    text += '"""\n'
    return text


# What each family of kernels does, for a reader of an exported file.
_FAMILIES = {
    "columns": "few pixels and large weights: a matrix product on tensor cores of the weights as they lie, rows "
    "(output channel, tap), and the cells of the input; then outputs add up what their taps find in shared memory.",
    "tile": "a matrix product on tensor cores: rows are output channels (of several phases, where that fills a tile), "
    "columns are cells of the output, and the depth is (tap, input channel). A block keeps a patch of the input in "
    "shared memory, in which a tap is one shift, and reads weights that a first small kernel has put in its order.",
    "direct": "CUDA cores: a block keeps a patch of its input and the halo in shared memory or registers and computes "
    "all phases of an output tile, so that whole rows are stored.",
    "reduce": "a matrix product on tensor cores whose depth is the pixels: rows are input channels, columns (tap, "
    "output channel). Pixels are cut into parts so that few weights fill the GPU; a second kernel adds them in order.",
    "group": "gradients of groups of eight channels on tensor cores: a block keeps what a box of pixels reads of the "
    "output's gradient in shared memory, and operands are read from there as they lie; sums of weights are added in "
    "order by a second kernel.",
    "depthwise": "CUDA cores: a thread walks over pixels of one channel and keeps a sum for every tap; the sums are "
    "added in order.",
    "general": "a thread gathers the taps of its outputs from memory; it takes every layer, in 64-bit offsets.",
}


def _family_words(plans: list[dict[tuple[str, str], dict[str, Piece]]]) -> str:
    """What the families that the plans name do."""
    used = {piece.family for plan in plans for found in plan.values() for piece in found.values()} | {"general"}
    return "".join(_wrapped(f"{name}: {words}") for name, words in _FAMILIES.items() if name in used)


def _phases_words(p: Problem) -> str:
    """How many residues each axis has, and how many of them taps reach if not all."""
    words = []
    for name, k, s, d in zip(("depth", "height", "width")[-p.rank :], p.kernel, p.stride, p.dilation, strict=True):
        reached = len({tap * d % s for tap in range(k)})
        words.append(f"{name} {s}" + ("" if reached == s else f" ({reached} with taps)"))
    return "phases along each axis: " + ", ".join(words)


def _layer_words(layer: FoundLayer, plan: dict[tuple[str, str], dict[str, Piece]]) -> str:
    p = layer.problem
    text = (
        f"The layer: {p.describe()}{' with bias' if layer.bias else ''}, {layer.dtype}\n"
        "(n samples, c channels, i input, k kernel, s stride, p padding, op output padding, d dilation, g groups).\n"
        + textwrap.fill(f"Output {[p.batch, p.out_channels, *p.output]}; {_phases_words(p)}.", 116)
        + "\n"
        "For these sizes, and any batch, it is computed as follows; other sizes and types by general kernels.\n"
    )
    shown: dict[str, list[str]] = {}
    for direction in export_record.DIRECTIONS:
        for (gpu, precision), found in plan.items():
            place = "Hopper" if gpu == "hopper" else "8.0 and later"
            place += f", {precision.upper() if precision == 'tf32' else precision}" if layer.dtype == "float32" else ""
            piece = found[direction]
            places = shown.setdefault(f"{direction}: {piece.family} ({piece.description})", [])
            if place not in places:
                places.append(place)
    for line, places in shown.items():
        text += _wrapped(f"{line} [{'; '.join(places)}]")
    return text


def _wrapped(text: str, width: int = 116) -> str:
    lines, line = [], "   "
    for word in text.split():
        if len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "       "
        line += " " + word
    return "\n".join([*lines, line]) + "\n"
