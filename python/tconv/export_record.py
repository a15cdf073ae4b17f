"""What the library would launch for a layer, as CUDA text that launches the same for any batch.

The planner is asked for each direction and kind of GPU (no GPU is needed), and the launches that it would make are
noted: kernel, constants, grid and the bytes of every parameter. The bytes are read by the structures' own declarations
in the device code; what depends on the batch is written as an expression of it.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from tconv.explain import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tconv.problems import Problem

DIRECTIONS = ("forward", "grad_input", "grad_weight")
MARKER_DISTANCE = 1 << 44
BATCH_STRIDES = ("input_batch", "output_batch")  # members that hold the stride between samples alone
MARKERS = ("input", "weight", "bias", "output", "workspace")


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a plan."""

    file: str
    config: str
    entry: str
    shared_bytes: int
    grid: tuple[int, int, int]
    block: int
    overlaps_previous: bool
    arguments: tuple[bytes, ...]
    strides: dict[str, int] = field(default_factory=dict)  # members to replace: planners leave out what one needs not


@dataclass(frozen=True)
class Record:
    """All launches of a plan, in order."""

    family: str
    description: str
    workspace_bytes: int
    launches: tuple[Launch, ...]


@functools.cache
def kernel_files() -> dict[str, str]:
    """The library's device code, by file name."""
    texts = torch.ops.tconv._kernel_files()
    return dict(zip(texts[::2], texts[1::2], strict=True))


def record(
    problem: Problem, *, gpu: str, direction: str, dtype: str, precision: str, bias: bool, force: str = ""
) -> Record:
    """Plans `problem` for a kind of GPU, "hopper" or "ampere", and notes what a run would launch."""
    setting = Setting(dtype=dtype, device="cuda", direction=direction, bias=bias, precision=precision)
    # The exported call makes its tensors contiguous.
    question = setting.arguments(replace(problem, input_strides=None, weight_strides=None))
    family, description, workspace, *texts = torch.ops.tconv._record_launches(gpu, force, *question)
    launches = []
    for file, config, entry, numbers, arguments in zip(*[iter(texts)] * 5, strict=True):
        shared, x, y, z, block, overlaps = map(int, numbers.split())
        launches.append(
            Launch(
                file,
                config,
                entry,
                shared,
                (x, y, z),
                block,
                bool(overlaps),
                tuple(bytes.fromhex(argument) for argument in arguments.split()),
            )
        )
    return Record(family, description, int(workspace), tuple(launches))


def record_for_any_batch(problem: Problem, **question: Any) -> Record:
    """The record of a problem; of one with a single sample, with the strides between samples that more would have."""
    found = record(problem, **question)
    if problem.batch > 1 or found.family == "general":
        return found
    pair = record(replace(problem, batch=2), force=found.family, **question)
    strides = {}
    for launch in pair.launches:
        strides[launch.entry] = {name: value for name, value in launch_values(launch).items() if name in BATCH_STRIDES}
    return replace(
        found, launches=tuple(replace(launch, strides=strides.get(launch.entry, {})) for launch in found.launches)
    )


def most_samples(problem: Problem, found: Record, **question: Any) -> int:
    """A batch up to which the plan's family takes the problem: beyond it, 32-bit numbers would overflow."""
    for exponent in range(20, 0, -2):
        batch = 1 << exponent
        if batch <= problem.batch:
            break
        try:
            record(replace(problem, batch=batch), force=found.family, **question)
        except RuntimeError:
            continue
        return batch
    return max(problem.batch, 1)


# --- Structures ------------------------------------------------------------------------------------------------------

_SCALARS = {
    "int": ("i", 4),
    "unsigned": ("I", 4),
    "float": ("f", 4),
    "long long": ("q", 8),
    "tconv_device::i64": ("q", 8),
    "GeneralIndex": ("q", 8),
}


@dataclass(frozen=True)
class Field:
    """A member of a parameter structure, as it lies in memory."""

    name: str
    type: str  # a C++ type
    counts: tuple[int, ...]  # of an array


def structure(name: str, text: str) -> list[Field]:
    """The members of a structure of plain data, from its declaration."""
    found = re.search(rf"^struct {name} \{{\n(.*?)^\}};", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"the device code declares no structure {name}")
    fields = []
    for statement in re.sub(r"//[^\n]*", "", found[1]).split(";"):
        declaration = " ".join(statement.split())
        if not declaration:
            continue
        kind, members = re.fullmatch(r"((?:const )?(?:long long|[\w:]+)\s?\*?) ?(.+)", declaration).groups()
        for member in members.split(","):
            member_name, *counts = re.findall(r"\w+", member)
            fields.append(Field(member_name, kind.strip(), tuple(map(int, counts))))
    return fields


class _Reader:
    """Reads values from the bytes of a structure, by its declaration."""

    def __init__(self, data: bytes, text: str) -> None:
        self.data = data
        self.text = text
        self.at = 0

    def _scalar(self, kind: str) -> int | str:
        letter, size = ("Q", 8) if "*" in kind else _SCALARS[kind]
        self.at += -self.at % size
        (value,) = struct.unpack_from("<" + letter, self.data, self.at)
        self.at += size
        if "*" not in kind:
            return value
        return _pointer(value) if "void" in kind else f"static_cast<{kind}>({_pointer(value)})"

    def value(self, kind: str, counts: tuple[int, ...]) -> Any:
        if counts:
            return [self.value(kind, counts[1:]) for _ in range(counts[0])]
        if "*" in kind or kind in _SCALARS:
            return self._scalar(kind)
        return [self.value(member.type, member.counts) for member in structure(kind, self.text)]


def _pointer(value: int) -> str:
    if value == 0:
        return "nullptr"
    marker, offset = divmod(value, MARKER_DISTANCE)
    if marker == 0 or marker > len(MARKERS):
        raise ValueError(f"a recorded pointer must point at a marker, got {value:#x}")
    if offset > MARKER_DISTANCE // 2:
        marker, offset = marker + 1, offset - MARKER_DISTANCE
    name = f"tensors.{MARKERS[marker - 1]}"
    return name if offset == 0 else f"at({name}, {offset})"


def read_parameters(name: str, data: bytes, text: str) -> list[tuple[Field, Any]]:
    """The members of a recorded structure with their values; pointers are expressions."""
    reader = _Reader(data, text)
    values = [(member, reader.value(member.type, member.counts)) for member in structure(name, text)]
    if not 0 <= len(data) - reader.at < 8:
        raise ValueError(f"{name} has {len(data)} bytes, but its declaration makes {reader.at}")
    return values


# --- Text ------------------------------------------------------------------------------------------------------------

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


def needed_files(text: str, files: dict[str, str]) -> Iterator[str]:
    """The names of the files that a text includes, and those that these include."""
    for line in text.splitlines():
        if found := _INCLUDE.match(line):
            yield found[1]
            yield from needed_files(files[found[1]], files)


def flatten(text: str, files: dict[str, str], done: set[str]) -> str:
    """The text with every file that it includes in its place, once each."""
    lines = []
    for line in text.splitlines():
        found = _INCLUDE.match(line)
        if found is None:
            lines.append(line)
        elif found[1] not in done:
            done.add(found[1])
            lines.append(flatten(files[found[1]], files, done))
    return "\n".join(lines)


@dataclass(frozen=True)
class BatchRule:
    """How the batch enters a kernel's parameters and its grid: C++ expressions over `batch`.

    In them, {ns} is the kernel's namespace and {planes}, {threads}, {pixels} are the recorded members of that name for
    one sample; {grid_per_...} says how many blocks of the grid there are for each tile of samples, plane or sample.
    """

    members: dict[str, str]
    grid: str | None = None  # blocks along its first axis; None: as recorded
    samples: str | None = None  # the samples of a tile, which the host knows as kSamples
    planes: str | None = None  # the planes of a block, which the host knows as kPlanes
    most_blocks: str | None = None  # of a launch, which the host knows as kMostBlocks


_TILES = "ceil_div(batch, {ns}::kSamples)"
_REDUCE = BatchRule({"batch": "batch", "tiles[0]": _TILES}, samples="kShape.tile[0] * kShape.split[0]")
_BLOCKS = "ceil_div(batch * {planes}, {ns}::kPlanes) * {grid_per_planes}"

BATCH_RULES = {
    "tconv_columns": BatchRule(
        {"batch": "batch", "tiles[0]": _TILES}, _TILES + " * {grid_per_tile}", samples="kShape.samples"
    ),
    "tconv_tile": BatchRule(
        {"batch": "batch", "tiles[0]": _TILES},
        _TILES + " * {grid_per_tile}",
        samples="kShape.tile[0]",
        most_blocks="kShape.most_blocks",
    ),
    "tconv_tile_pack": BatchRule({"batch": "batch", "tiles[0]": _TILES}, samples="kShape.tile[0]"),
    "tconv_direct": BatchRule({"planes": "batch * {planes}"}, _BLOCKS, planes="kConfig.planes"),
    "tconv_depthwise": BatchRule({"planes": "batch * {planes}"}, _BLOCKS, planes="kConfig.planes"),
    "tconv_direct_gradient": BatchRule({}, "batch * {grid_per_sample}"),
    "tconv_direct_gradient_depthwise": BatchRule(
        {"threads": "batch * {threads}"}, "ceil_div(batch * {threads}, {ns}::kDepthwiseThreads)"
    ),
    "tconv_reduce": _REDUCE,
    "tconv_reduce_finish": _REDUCE,
    "tconv_group_input": BatchRule({"tiles[0]": "batch"}),
    "tconv_group_weight": BatchRule({"tiles[0]": "batch"}),
    "tconv_group_weight_finish": BatchRule({"tiles[0]": "batch"}),
    "tconv_depthwise_weight": BatchRule({"pixels": "batch * {pixels}"}),
    "tconv_depthwise_weight_finish": BatchRule({"pixels": "batch * {pixels}"}),
}


def _constants(values: dict[str, Any], launch: Launch, batch: int, namespace: str) -> dict[str, Any]:
    """What the expressions of a rule stand for."""
    constants: dict[str, Any] = {"ns": namespace}
    for name in ("planes", "threads", "pixels"):
        if isinstance(values.get(name), int):
            constants[name], rest = divmod(values[name], batch)
            if rest:
                raise ValueError(f"{launch.entry}: {name} must be a multiple of the batch {batch}, got {values[name]}")
    if "tiles" in values and isinstance(values["tiles"], list) and len(values["tiles"]) == 4:
        boxes = math.prod(values["tiles"])
        of_box = math.prod(values.get("residue_blocks", ())) * values.get("groups", 1) * values.get("channel_blocks", 1)
        # Several blocks may share a tile; or there are fewer blocks than tiles, and they stay for more than one.
        sharing = max(launch.grid[0] // max(boxes * of_box, 1), 1)
        constants["grid_per_tile"] = math.prod(values["tiles"][1:]) * of_box * sharing
    tiles = [values[name] for name in ("tiles_depth", "tiles_height", "tiles_width") if name in values]
    if "tiles" in values and isinstance(values["tiles"], int):
        constants["grid_per_planes"] = values["tiles"]
    elif len(tiles) == 3:
        constants["grid_per_planes"] = tiles[0] * tiles[1] * tiles[2]
    if launch.grid[0] % batch == 0:
        constants["grid_per_sample"] = launch.grid[0] // batch
    return constants


def _initialiser(values: list[tuple[Field, Any]], expressions: dict[str, str], indent: str) -> list[str]:
    """A structure's members as lines of an initialiser, each with its name."""

    def text(value: Any, kind: str, name: str) -> str:
        if name in expressions:
            return f"static_cast<{kind}>({expressions[name]})"
        if isinstance(value, list):
            return "{" + ", ".join(text(item, kind, f"{name}[{i}]") for i, item in enumerate(value)) + "}"
        return str(value)

    return [f"{indent}{text(value, member.type, member.name)},  // {member.name}" for member, value in values]


def parameter_type(entry: str, text: str) -> str:
    """The name of the structure that a kernel takes, in a text without other branches."""
    found = re.search(rf"\b{entry}\(\s*const (?:__grid_constant__ )?(\w+)\b", text)
    if found is None:
        raise ValueError(f"the device code has no kernel {entry}")
    alias = re.search(rf"^using {found[1]} = (\w+);", text, re.MULTILINE)
    return alias[1] if alias else found[1]


def taken_branches(text: str) -> str:
    """The text without the branches of `#if NAME` that a `#define NAME 0` or `1` in it rules out."""
    lines = []
    values: dict[str, bool] = {}
    taken: list[bool | None] = []  # of the conditions around a line: None if it is not known here
    for line in text.splitlines():
        if found := re.match(r"#define (\w+) ([01])$", line):
            values[found[1]] = found[2] == "1"
        if line.startswith("#if"):
            found = re.fullmatch(r"#if (\w+)", line)
            taken.append(values.get(found[1]) if found else None)
        elif line.startswith("#else") and taken[-1] is not None:
            taken[-1] = not taken[-1]
        elif line.startswith("#endif"):
            taken.pop()
        elif False not in taken:
            lines.append(line)
    return "\n".join(lines)


def launch_parameters(launch: Launch) -> tuple[str, list[tuple[Field, Any]]]:
    """The name of a launch's parameter structure, and its members with their values."""
    flat = taken_branches(flatten(f'{launch.config}\n#include "{launch.file}"', kernel_files(), set()))
    kind = parameter_type(launch.entry, flat)
    values = read_parameters(kind, launch.arguments[0], flat)
    return kind, [(member, launch.strides.get(member.name, value)) for member, value in values]


def launch_values(launch: Launch) -> dict[str, Any]:
    """The members of a launch's parameter structure by name."""
    return {member.name: value for member, value in launch_parameters(launch)[1]}


def launch_text(launch: Launch, namespace: str, batch: int, *, may_overlap: bool) -> tuple[str, str]:
    """A launch as two texts: the namespace that holds the kernel, and the statements that launch it."""
    rule = BATCH_RULES[launch.entry]
    kind, values = launch_parameters(launch)
    constants = _constants({member.name: value for member, value in values}, launch, batch, namespace)
    expressions = {name: expression.format(**constants) for name, expression in rule.members.items()}
    blocks = str(launch.grid[0]) if rule.grid is None else rule.grid.format(**constants)
    most = f"at_most(blocks, {namespace}::kMostBlocks)" if rule.most_blocks else "blocks"
    rest = ", ".join(map(str, launch.grid[1:]))
    extra = "".join(f", {_pointer(struct.unpack('<Q', data)[0])}" for data in launch.arguments[1:])
    overlaps = "true" if launch.overlaps_previous and may_overlap else "false"
    statements = [
        "  {",
        f"    const {namespace}::{kind} params = {{",
        *_initialiser(values, expressions, "        "),
        "    };",
        f"    const long long blocks = {blocks};",
        f"    const dim3 grid(static_cast<unsigned>({most}), {rest});",
        f"    const int error = launch({namespace}::{launch.entry}, grid, {launch.block}, {launch.shared_bytes},",
        f"                             {overlaps}, stream, params{extra});",
        "    if (error != 0) return error;",
        "  }",
    ]
    # The one macro of a config that a second kernel would find defined.
    macros = re.findall(r"^#define (\w+)", launch.config, re.MULTILINE)
    sizes = {
        "kSamples": (rule.samples, "of a block"),
        "kPlanes": (rule.planes, "of a block"),
        "kMostBlocks": (rule.most_blocks, "of a launch"),
    }
    kernel = [
        f"namespace {namespace} {{",
        wrap(launch.config).rstrip("\n"),
        f'#include "{launch.file}"',
        *(f"constexpr int {name} = {value};  // {what}" for name, (value, what) in sizes.items() if value),
        *(f"#undef {macro}" for macro in macros),
        f"}}  // namespace {namespace}",
    ]
    return "\n".join(kernel), "\n".join(statements)


def wrap(text: str, width: int = 116) -> str:
    """Long lines of C++ broken behind commas, those of directives with a backslash."""
    lines = []
    for line in text.splitlines():
        end = " \\" if line.startswith("#") else ""
        while len(line) > width and ", " in line[40:width]:
            cut = line.rindex(", ", 40, width) + 2
            quote = '"' if line[:cut].count('"') % 2 else ""  # inside a string: it becomes two, which are one to C++
            lines.append((line[:cut] + quote).rstrip() + end)
            line = "    " + quote + line[cut:]
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"
