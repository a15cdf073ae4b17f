"""The source of `ModelNew` in an exported file: a class with its layers replaced, a container of layers, one layer."""

from __future__ import annotations

import ast
import symtable
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from tconv.export_model import FoundLayer
    from tconv.problems import Problem

LAYERS = {
    "ConvTranspose1d": nn.ConvTranspose1d,
    "ConvTranspose2d": nn.ConvTranspose2d,
    "ConvTranspose3d": nn.ConvTranspose3d,
}
NEW_NAME = "ModelNew"
_IMPORTED = {"torch": "torch", "nn": "torch.nn"}  # what every exported file imports, of what models do


class ExportError(ValueError):
    """A request that can't be met; the message says what was expected and what came."""


# --- A class ---------------------------------------------------------------------------------------------------------


def defined_names(node: ast.stmt) -> set[str]:
    """The names that a statement of a module gives a meaning."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}


def imported_meanings(node: ast.stmt) -> dict[str, str]:
    """What the names that an import gives a meaning stand for: a module, or a name in one."""
    if isinstance(node, ast.Import):
        return {a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names}
    if isinstance(node, ast.ImportFrom):
        return {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return {}


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
            if current not in defined_names(node) or node in needed:
                continue
            needed.add(node)
            parts: list[ast.AST] = [node]
            if isinstance(node, ast.ClassDef | ast.FunctionDef):  # its body has a scope of its own
                wanted.extend(scopes.get(node.name, ()))
                parts = [*node.decorator_list, *getattr(node, "bases", []), *getattr(node, "keywords", [])]
                if isinstance(node, ast.FunctionDef):
                    parts.append(node.args)
            parts += _annotations(node)
            wanted.extend(inner.id for part in parts for inner in ast.walk(part) if isinstance(inner, ast.Name))
    return [node for node in tree.body if node in needed]


def _annotations(node: ast.stmt) -> list[ast.AST]:
    """The types that are named anywhere in a statement. The exported file evaluates them, whatever the original did."""
    inner = list(ast.walk(node))
    return [part for one in inner for part in (getattr(one, "annotation", None), getattr(one, "returns", None)) if part]


def _torch_names(tree: ast.Module) -> set[str]:
    """The names under which a module has PyTorch and its parts, such as `nn`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or "torch" for alias in node.names if alias.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _is_layer(node: ast.AST, torch_names: set[str]) -> bool:
    """nn.ConvTranspose2d, torch.nn.ConvTranspose2d or torch.nn.modules.conv.ConvTranspose2d."""
    return (
        isinstance(node, ast.Attribute) and node.attr in LAYERS and ast.unparse(node.value).split(".")[0] in torch_names
    )


def _without_layers(statement: ast.ImportFrom) -> str:
    """An import of PyTorch's layers, among others, without them: the file has its own of the same name."""
    others = [alias for alias in statement.names if alias.name not in LAYERS]
    renamed = [f"{a.asname} = {a.name}" for a in statement.names if a.name in LAYERS and a.asname not in (None, a.name)]
    if others:
        renamed.insert(0, ast.unparse(ast.ImportFrom(statement.module, others, statement.level)))
    return "\n".join(renamed)


def rewritten_source(source: str, name: str) -> str:
    """The class `name` of a module and what it needs, under the name ModelNew, with the file's own layers.

    Only names change: the rest is the text as its author wrote it.
    """
    tree = ast.parse(source)
    torch_names = _torch_names(tree)
    statements = _needed_statements(tree, symtable.symtable(source, "model", "exec"), name)
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in statements):
        raise ExportError(f"the source must define the class {name} at its top level")
    _refuse_lazy_layers(statements)
    lines = source.splitlines(keepends=True)
    pieces = []
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and any(alias.name in LAYERS for alias in statement.names):
            pieces.append(_without_layers(statement))
            continue
        meanings = imported_meanings(statement)
        if meanings and meanings.items() <= _IMPORTED.items():
            continue  # the file has them already
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            continue
        pieces.append(_renamed(statement, lines, name, torch_names))
    text = ""
    for piece in filter(None, (piece.strip("\n") for piece in pieces)):
        text += ("\n\n" if text and "\n" in piece else "") + piece + "\n"
    return text


def _refuse_lazy_layers(statements: list[ast.stmt]) -> None:
    for statement in statements:
        for node in ast.walk(statement):
            used = getattr(node, "attr", getattr(node, "id", None))
            if isinstance(used, str) and used.removeprefix("Lazy") in LAYERS and used.startswith("Lazy"):
                raise ExportError(f"{used} can't be exported: write {used.removeprefix('Lazy')} with its in_channels")


def _renamed(statement: ast.stmt, lines: list[str], name: str, torch_names: set[str]) -> str:
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    text = [line.encode() for line in lines[first - 1 : statement.end_lineno]]
    edits = []
    for node in ast.walk(statement):
        if _is_layer(node, torch_names):
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


# --- A container -----------------------------------------------------------------------------------------------------


def sequential_source(module: nn.Sequential) -> str:
    """ModelNew for an nn.Sequential of PyTorch's layers, as they print themselves."""
    steps = "".join(
        f"        self.add_module({name!r}, {_construction(child)})\n" for name, child in module.named_children()
    )
    return f"class {NEW_NAME}(nn.Sequential):\n    def __init__(self):\n        super().__init__()\n{steps}"


def _construction(module: nn.Module) -> str:
    """The expression that makes a layer like this one."""
    name = type(module).__name__
    if type(module) is nn.Sequential and list(module._modules) == [str(i) for i in range(len(module))]:
        return f"nn.Sequential({', '.join(_construction(child) for child in module)})"
    text = f"{'' if name in LAYERS else 'nn.'}{name}({module.extra_repr()})"
    if getattr(nn, name, None) is type(module) and not list(module.children()):
        try:
            other = eval(text, {"nn": nn, **LAYERS})
        except Exception:
            other = None
        if repr(other) == repr(module):
            return text
    raise ExportError(
        f"an nn.Sequential of PyTorch's plain layers can be exported, got {name} in it: "
        "write a class that owns these layers, in a file"
    )


# --- One layer -------------------------------------------------------------------------------------------------------


def _value(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else str(values)


# Models of KernelBench whose arguments are not in the order that the rule below gives.
_ORDERS = {
    "kb69": ("stride", "padding", "output_padding", "dilation", "groups"),
    "kb70": ("stride", "padding", "output_padding", "dilation", "groups"),
    "kb78": ("stride", "padding"),
}


def _argument_order(p: Problem) -> tuple[str, ...]:
    """The arguments between kernel_size and bias, as KernelBench's models have them: those of nn.ConvTranspose, or
    dilation where a layer has one, with what else it uses."""
    if p.name in _ORDERS:
        return _ORDERS[p.name]
    if set(p.dilation) == {1}:
        return ("stride", "padding", "output_padding", "groups")
    padding = ("output_padding",) if any(p.output_padding) else ()
    groups = ("groups",) if p.groups != 1 else ()
    return ("stride", "padding", *padding, "dilation", *groups)


def layer_source(layer: FoundLayer, base: str | None = None) -> str:
    """ModelNew for one layer: the layer itself (`base` names its class), or a model that owns it."""
    p = layer.problem
    first = {"in_channels": str(p.in_channels), "out_channels": str(p.out_channels), "kernel_size": _value(p.kernel)}
    rest = {
        "stride": _value(p.stride),
        "padding": _value(p.padding),
        "output_padding": _value(p.output_padding),
        "dilation": _value(p.dilation),
        "groups": str(p.groups),
    }
    order = _argument_order(p) if base is None else ("stride", "padding", "output_padding", "groups")
    arguments = first | {name: rest.pop(name) for name in order} | {"bias": str(layer.bias)}
    signature = ["self", *(f"{name}={value}" for name, value in arguments.items())]
    if base is not None:  # the last arguments of nn.ConvTranspose
        rest |= {"padding_mode": '"zeros"', "device": "None", "dtype": "None"}
    elif rest:
        signature.append("*")
    signature += [f"{name}={value}" for name, value in rest.items()]
    passed = "".join(f"            {name}={name},\n" for name in (arguments | rest))
    parameters = "".join(f"        {argument},\n" for argument in signature)
    if base is not None:
        return (
            f"class {NEW_NAME}({base}):\n    def __init__(\n{parameters}    ):\n"
            f"        super().__init__(\n{passed}        )\n"
        )
    attribute = f"conv_transpose{p.rank}d" if p.rank > 1 else "conv1d_transpose"  # KernelBench's names of parameters
    return (
        f"class {NEW_NAME}(nn.Module):\n    def __init__(\n{parameters}    ):\n        super().__init__()\n"
        f"        self.{attribute} = ConvTranspose{p.rank}d(\n{passed}        )\n\n"
        f"    def forward(self, x):\n        return self.{attribute}(x)\n\n\n"
        f"def get_inputs():\n    return [torch.rand({', '.join(map(str, p.input_shape))})]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
