"""The model of an exported file: where it comes from, and which transposed convolutions it calls with which sizes."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tconv.export_source import LAYERS, NEW_NAME, ExportError, layer_source, rewritten_source, sequential_source
from tconv.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_KINDS = tuple(LAYERS.values())
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


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
    if x.shape[1] != layer.in_channels:
        raise ExportError(
            f"{type(layer).__name__} takes an input of {layer.in_channels} channels, got the size {tuple(x.shape)}"
        )
    if x.dtype != layer.weight.dtype:
        raise ExportError(f"input and weight must have one type, got {x.dtype} and {layer.weight.dtype}")
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
        if isinstance(layer, _KINDS)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _refuse_spectral_norm(model: nn.Module) -> None:
    """It normalises PyTorch's transposed convolutions along another axis than every other layer."""
    for layer in model.modules():
        if isinstance(layer, _KINDS):
            changes = [change for group in getattr(layer, "parametrizations", {}).values() for change in group]
            names = {type(change).__name__ for change in [*changes, *layer._forward_pre_hooks.values()]}
            if names & {"SpectralNorm", "_SpectralNorm"}:
                raise ExportError("a transposed convolution under spectral_norm can't be exported")


def layers_called(model: nn.Module, inputs: Iterable[Any]) -> tuple[FoundLayer, ...]:
    """The transposed convolutions that a model calls, each once.

    The model runs on PyTorch's meta device, which computes sizes alone; what it does behind its last transposed
    convolution need not work there.
    """
    if not any(isinstance(layer, _KINDS) for layer in model.modules()):
        raise ExportError(
            f"{type(model).__name__} has no transposed convolution: it must own an nn.ConvTranspose1d, 2d or 3d "
            "(functional calls are left as they are)"
        )
    _refuse_spectral_norm(model)
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


# --- Where models come from ------------------------------------------------------------------------------------------


def model_of_file(path: Path) -> FoundModel:
    """A file that defines Model, get_inputs and get_init_inputs."""
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} could not be read: {error}") from error
    try:
        namespace = _run(source, str(path))
    except Exception as error:
        raise ExportError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in namespace]
    if missing:
        raise ExportError(f"{path} must define Model, get_inputs and get_init_inputs, but lacks {', '.join(missing)}")
    try:
        model, inputs = _made(
            lambda: (_built(namespace["Model"], namespace["get_init_inputs"]), namespace["get_inputs"]())
        )
    except Exception as error:
        raise ExportError(f"the Model of {path} could not be made: {type(error).__name__}: {error}") from error
    layers = layers_called(model, inputs)
    text = rewritten_source(source, "Model")
    _require_own_layers(text, namespace["get_init_inputs"])
    return FoundModel(text, layers, f"The Model of {path.name}")


def _run(source: str, file: str, **names: Any) -> dict[str, Any]:
    """The names that a module's source defines. While it runs it is known as a module: data classes ask for theirs."""
    module = types.ModuleType("tconv_exported_model")
    module.__dict__.update(names, __file__=file)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__


def _made(make: Callable[[], Any]) -> Any:
    """What a function makes, on PyTorch's meta device, which needs no memory and no GPU, if it works there."""
    try:
        with torch.device("meta"):
            return make()
    except Exception:
        return make()


def _built(kind: Callable[..., nn.Module], get_init_inputs: Callable[[], Any]) -> nn.Module:
    given = get_init_inputs()
    if len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict):
        return kind(*given[0], **given[1])
    return kind(*given)


def _require_own_layers(source: str, get_init_inputs: Callable[[], Any]) -> None:
    """Builds ModelNew as the exported file will, to see that none of its layers is still PyTorch's."""
    own = {name: type(name, (kind,), {}) for name, kind in LAYERS.items()}
    try:
        namespace = _run(source, "exported", torch=torch, nn=nn, **own)
        model = _made(lambda: _built(namespace[NEW_NAME], get_init_inputs))
    except Exception as error:
        raise ExportError(f"the class that was written does not work: {type(error).__name__}: {error}") from error
    for name, layer in model.named_modules():
        if isinstance(layer, _KINDS) and not isinstance(layer, tuple(own.values())):
            raise ExportError(
                f"{name} is not made in the model's own file: it must be written there as nn.{type(layer).__name__}"
            )


def model_of_module(module: nn.Module, example: Any) -> FoundModel:
    """A module and an example of its input (a tensor, or a tuple of all its arguments)."""
    inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
    if type(module).__name__ in LAYERS and isinstance(module, _KINDS):
        layer = found_layer(module, *inputs)
        name = type(module).__name__
        return FoundModel(layer_source(layer, base=name), (layer,), f"nn.{name}({module.extra_repr()})")
    kind = type(module)
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters()):
        raise ExportError(f"{kind.__name__} has lazy layers without sizes: call it once before the export")
    layers = layers_called(module, inputs)
    if kind is nn.Sequential:
        return FoundModel(sequential_source(module), layers, "nn.Sequential")
    for owner in module.modules():
        owned = any(isinstance(child, _KINDS) for child in owner.children())
        if owned and owner.__module__ != kind.__module__ and not isinstance(owner, _CONTAINERS):
            raise ExportError(
                f"{type(owner).__name__}, which owns a transposed convolution, must be defined in the file of "
                f"{kind.__name__} ({kind.__module__}), got one of {owner.__module__}"
            )
    try:
        source = inspect.getsource(inspect.getmodule(kind))
    except (OSError, TypeError) as error:
        raise ExportError(f"the source of {kind.__name__} must be in a file, to be exported: {error}") from error
    return FoundModel(rewritten_source(source, kind.__name__), layers, kind.__name__)


def model_of_problem(problem: Problem, dtype: str, bias: bool) -> FoundModel:
    """One layer, by its sizes."""
    layer = FoundLayer(problem, dtype, bias)
    return FoundModel(layer_source(layer), (layer,), problem.source or f"nn.ConvTranspose{problem.rank}d")
