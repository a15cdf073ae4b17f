"""Swaps the transposed convolutions of a model for tconv's."""

from __future__ import annotations

from typing import TypeVar

from torch import nn
from torch.nn.utils import parametrize

from . import modules

Model = TypeVar("Model", bound=nn.Module)

_SUCCESSORS: dict[type[nn.Module], type[nn.Module]] = {
    nn.ConvTranspose1d: modules.ConvTranspose1d,
    nn.ConvTranspose2d: modules.ConvTranspose2d,
    nn.ConvTranspose3d: modules.ConvTranspose3d,
    nn.LazyConvTranspose1d: modules.LazyConvTranspose1d,
    nn.LazyConvTranspose2d: modules.LazyConvTranspose2d,
    nn.LazyConvTranspose3d: modules.LazyConvTranspose3d,
}


def _successor(layer: nn.Module) -> type[nn.Module] | None:
    kind = type(layer)
    if kind in _SUCCESSORS:
        return _SUCCESSORS[kind]
    # A parametrised layer has a class of its own, derived from the layer's, that holds the computed parameters as
    # properties. Copies of the layer share it, so that it is copied onto the new base and never changed.
    if parametrize.is_parametrized(layer) and len(kind.__bases__) == 1 and kind.__bases__[0] in _SUCCESSORS:
        members = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        return type(kind.__name__, (_SUCCESSORS[kind.__bases__[0]],), members)
    return None


def convert(model: Model) -> Model:
    """Makes every ``torch.nn.ConvTranspose1d/2d/3d`` in ``model``, lazy ones too, compute with tconv; returns it.

    Each layer stays the same object and only its class changes, so that parameters, buffers, hooks, parametrizations,
    names, the training flag and whatever else refers to the layer are untouched, and a layer used in several places is
    converted in all of them. Subclasses of PyTorch's layers may compute something of their own: they are left alone.
    """
    for layer in model.modules():
        successor = _successor(layer)
        if successor is not None:
            layer.__class__ = successor
    return model
