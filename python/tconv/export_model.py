"""The model of an exported file: which transposed convolutions it calls, and its source with those layers replaced."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import symtable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tconv.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

LAYERS = {
    "ConvTranspose1d": nn.ConvTranspose1d,
    "ConvTranspose2d": nn.ConvTranspose2d,
    "ConvTranspose3d": nn.ConvTranspose3d,
}
NEW_NAME = "ModelNew"


class ExportError(ValueError):
    """A request that can't be met; the message says what was expected and what came."""


@dataclass(frozen=True)
class FoundLayer:
    """A transposed convolution as a model called it."""

    problem: Problem
    dtype: str
    bias: bool


@dataclass(frozen=True)
class FoundModel:
    """A model to be exported."""

    source: str  # defines ModelNew
    layers: tuple[FoundLayer, ...]  # in the order of their calls, each once
    origin: str  # a few words for the top of the file


# --- Finding the layers ----------------------------------------------------------------------------------------------


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def problem_of(layer: nn.Module, shape: Iterable[int], output_padding: Iterable[int] | None = None) -> Problem:
    """The problem that a layer computes for an input of a size, batch first."""
    batch, _, *sizes = shape
    return Problem(
        name=type(layer).__name__,
        batch=max(batch, 1),
        in_channels=layer.in_channels,
        out_channels=layer.out_channels,
        input=tuple(sizes),
        kernel=tuple(layer.kernel_size),
        stride=tuple(layer.stride),
        padding=tuple(layer.padding),
        output_padding=tuple(layer.output_padding if output_padding is None else output_padding),
        dilation=tuple(layer.dilation),
        groups=layer.groups,
    )


def found_layer(layer: nn.Module, x: torch.Tensor, output_size: Any = None) -> FoundLayer:
    if layer.padding_mode != "zeros":
        raise ExportError(
            f"only the padding_mode 'zeros' can be exported, as PyTorch computes no other, got {layer.padding_mode!r}"
        )
    rank = len(layer.kernel_size)
    if x.dim() not in (rank + 1, rank + 2):
        raise ExportError(
            f"{type(layer).__name__} takes an input of {rank + 1} or {rank + 2} dimensions, "
            f"got the size {tuple(x.shape)}"
        )
    x = x if x.dim() == rank + 2 else x.unsqueeze(0)
    padding = layer._output_padding(
        x, output_size, layer.stride, layer.padding, layer.kernel_size, rank, layer.dilation
    )
    return FoundLayer(problem_of(layer, x.shape, padding), dtype_name(x.dtype), layer.bias is not None)


@contextlib.contextmanager
def watch_layers(model: nn.Module) -> Iterator[list[FoundLayer]]:
    """Notes what every transposed convolution of a model is called with."""
    found: list[FoundLayer] = []

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = dict(zip(("input", "output_size"), args, strict=False)) | kwargs
        layer_call = found_layer(layer, call["input"], call.get("output_size"))
        if layer_call not in found:
            found.append(layer_call)

    hooks = [
        layer.register_forward_pre_hook(note, with_kwargs=True)
        for layer in model.modules()
        if isinstance(layer, tuple(LAYERS.values()))
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def layers_called(model: nn.Module, inputs: Iterable[Any]) -> tuple[FoundLayer, ...]:
    """The transposed convolutions that a model calls, each once.

    The model runs on PyTorch's meta device, which computes sizes alone; what it does behind its last transposed
    convolution need not work there.
    """
    if not any(isinstance(layer, tuple(LAYERS.values())) for layer in model.modules()):
        raise ExportError(
            f"{type(model).__name__} has no transposed convolution: it must own an nn.ConvTranspose1d, 2d or 3d"
        )
    meta = copy.deepcopy(model).to("meta")
    arguments = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in inputs]
    with watch_layers(meta) as found, torch.no_grad():
        try:
            meta(*arguments)
        except ExportError:
            raise
        except Exception as error:
            if not found:
                raise ExportError(
                    f"{type(model).__name__} failed before its transposed convolution: {error}"
                ) from error
    if not found:
        raise ExportError(f"{type(model).__name__} did not call its transposed convolution with the example input")
    return tuple(found)


# --- Its source ------------------------------------------------------------------------------------------------------


def _defined_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}


def _global_names(table: symtable.SymbolTable) -> set[str]:
    """The names of the module that a class or function uses."""
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and symbol.is_global()}
    return names.union(*map(_global_names, table.get_children()))


def _needed_statements(tree: ast.Module, tables: symtable.SymbolTable, name: str) -> list[ast.stmt]:
    """The statements of a module that the class `name` needs, itself among them, in their order."""
    scopes: dict[str, set[str]] = {}
    for table in tables.get_children():
        scopes.setdefault(table.get_name(), set()).update(_global_names(table))
    wanted, needed = [name], set()
    while wanted:
        current = wanted.pop()
        for node in tree.body:
            if current not in _defined_names(node) or node in needed:
                continue
            needed.add(node)
            parts: list[ast.AST] = [node]
            if isinstance(node, ast.ClassDef | ast.FunctionDef):  # its body has a scope of its own
                wanted.extend(scopes.get(node.name, ()))
                parts = [*node.decorator_list, *getattr(node, "bases", []), *getattr(node, "keywords", [])]
                if isinstance(node, ast.FunctionDef):
                    parts.append(node.args)
            wanted.extend(inner.id for part in parts for inner in ast.walk(part) if isinstance(inner, ast.Name))
    return [node for node in tree.body if node in needed]


def _is_layer(node: ast.AST) -> bool:
    """nn.ConvTranspose2d, torch.nn.ConvTranspose2d or torch.nn.modules.conv.ConvTranspose2d."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in LAYERS
        and ast.unparse(node.value).split(".")[0] in ("nn", "torch")
    )


def rewritten_source(source: str, name: str) -> str:
    """The class `name` of a module and what it needs, under the name ModelNew, with the file's own layers.

    Only names change: the rest is the text as its author wrote it.
    """
    tree = ast.parse(source)
    statements = _needed_statements(tree, symtable.symtable(source, "model", "exec"), name)
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in statements):
        raise ExportError(f"the source must define the class {name} at its top level")
    lines = source.splitlines(keepends=True)
    pieces = []
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and any(alias.name in LAYERS for alias in statement.names):
            statement.names = [alias for alias in statement.names if alias.name not in LAYERS]
            pieces.append(ast.unparse(statement) if statement.names else "")
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom) and ast.unparse(statement) in (
            "import torch",
            "import torch.nn as nn",
            "from torch import nn",
        ):
            continue  # the file has them already
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            continue
        pieces.append(_renamed(statement, lines, name))
    text = ""
    for piece in filter(None, (piece.strip("\n") for piece in pieces)):
        text += ("\n\n" if text and "\n" in piece else "") + piece + "\n"
    return text


def _renamed(statement: ast.stmt, lines: list[str], name: str) -> str:
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    text = [line.encode() for line in lines[first - 1 : statement.end_lineno]]
    edits = []
    for node in ast.walk(statement):
        if _is_layer(node):
            edits.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, node.attr))
        elif isinstance(node, ast.Name) and node.id == name:
            edits.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, NEW_NAME))
        elif isinstance(node, ast.ClassDef) and node.name == name:
            column = lines[node.lineno - 1].encode().index(name.encode(), node.col_offset)
            edits.append((node.lineno, column, node.lineno, column + len(name.encode()), NEW_NAME))
    for line, column, end_line, end_column, new in sorted(edits, reverse=True):
        if line != end_line:
            raise ExportError(f"the name of a layer must stand in one line, got one in lines {line} to {end_line}")
        row = text[line - first]
        text[line - first] = row[:column] + new.encode() + row[end_column:]
    return "\n".join(row.decode().rstrip() for row in text)


# --- Where models come from ------------------------------------------------------------------------------------------


def model_of_file(path: Path) -> FoundModel:
    """A file that defines Model, get_inputs and get_init_inputs."""
    source = path.read_text()
    namespace: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    try:
        exec(compile(source, str(path), "exec"), namespace)
    except Exception as error:
        raise ExportError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in namespace]
    if missing:
        raise ExportError(f"{path} must define Model, get_inputs and get_init_inputs, but lacks {', '.join(missing)}")
    with torch.device("meta"):
        model = _built(namespace["Model"], namespace["get_init_inputs"])
        layers = layers_called(model, namespace["get_inputs"]())
    return FoundModel(rewritten_source(source, "Model"), layers, f"the Model of {path.name}")


def _built(kind: Callable[..., nn.Module], get_init_inputs: Callable[[], Any]) -> nn.Module:
    given = get_init_inputs()
    if len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict):
        return kind(*given[0], **given[1])
    return kind(*given)


def model_of_module(module: nn.Module, example: Any) -> FoundModel:
    """A module and an example of its input (a tensor, or a tuple of all its arguments)."""
    inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
    if type(module).__name__ in LAYERS and isinstance(module, tuple(LAYERS.values())):
        layer = found_layer(module, *inputs)
        name = type(module).__name__
        return FoundModel(layer_source(layer, base=name), (layer,), f"nn.{name}({module.extra_repr()})")
    layers = layers_called(module, inputs)
    kind = type(module)
    try:
        source = inspect.getsource(inspect.getmodule(kind))
    except (OSError, TypeError) as error:
        raise ExportError(f"the source of {kind.__name__} must be in a file, to be exported: {error}") from error
    return FoundModel(rewritten_source(source, kind.__name__), layers, kind.__name__)


def model_of_problem(problem: Problem, dtype: str, bias: bool) -> FoundModel:
    """One layer, by its sizes."""
    layer = FoundLayer(problem, dtype, bias)
    return FoundModel(layer_source(layer), (layer,), problem.source or f"nn.ConvTranspose{problem.rank}d")


def _value(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else str(values)


def layer_source(layer: FoundLayer, base: str | None = None) -> str:
    """ModelNew for one layer: the layer itself (`base` names its class), or a model that owns it.

    Its arguments come in the order in which benchmarks pass them; those that the layer leaves alone come last.
    """
    p = layer.problem
    first = {"in_channels": str(p.in_channels), "out_channels": str(p.out_channels), "kernel_size": _value(p.kernel)}
    rest = {
        "stride": (_value(p.stride), p.stride == (1,) * p.rank),
        "padding": (_value(p.padding), p.padding == (0,) * p.rank),
        "output_padding": (_value(p.output_padding), p.output_padding == (0,) * p.rank),
        "dilation": (_value(p.dilation), p.dilation == (1,) * p.rank),
        "groups": (str(p.groups), p.groups == 1),
    }
    bias = {"bias": str(layer.bias)}
    if base is not None:  # nn.ConvTranspose's own order
        names = ["stride", "padding", "output_padding", "groups"]
        last = {"dilation": rest["dilation"][0], "padding_mode": '"zeros"', "device": "None", "dtype": "None"}
        arguments = first | {name: rest[name][0] for name in names} | bias | last
        keywords: dict[str, str] = {}
    else:
        used = {name: value for name, (value, usual) in rest.items() if not usual}
        arguments = first | used | bias
        keywords = {name: value for name, (value, usual) in rest.items() if usual}
    signature = ["self", *(f"{name}={value}" for name, value in arguments.items())]
    if keywords:
        signature += ["*", *(f"{name}={value}" for name, value in keywords.items())]
    passed = "".join(f"            {name}={name},\n" for name in (arguments | keywords))
    parameters = "".join(f"        {argument},\n" for argument in signature)
    if base is not None:
        return (
            f"class {NEW_NAME}({base}):\n    def __init__(\n{parameters}    ):\n"
            f"        super().__init__(\n{passed}        )\n"
        )
    attribute = f"conv_transpose{p.rank}d"
    return (
        f"class {NEW_NAME}(nn.Module):\n    def __init__(\n{parameters}    ):\n        super().__init__()\n"
        f"        self.{attribute} = ConvTranspose{p.rank}d(\n{passed}        )\n\n"
        f"    def forward(self, x):\n        return self.{attribute}(x)\n\n\n"
        f"def get_inputs():\n    return [torch.rand({', '.join(map(str, p.input_shape))})]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
