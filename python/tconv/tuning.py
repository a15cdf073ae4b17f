"""Autotuning: the kernels of a problem timed against each other, once, and the fastest kept on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, overload

import torch

from . import _library
from ._modes import evaluation_mode


@overload
def autotune() -> AbstractContextManager[None]: ...
@overload
def autotune(model: torch.nn.Module, *example: Any, **keywords: Any) -> None: ...
def autotune(
    model: torch.nn.Module | None = None, *example: Any, **keywords: Any
) -> AbstractContextManager[None] | None:
    """Finds the fastest GPU kernels by timing instead of by the cost model.

    Either a context (or a decorator), inside which every problem that is met for the first time is tuned, forward and
    backward alike::

        with tconv.autotune():
            model(x).sum().backward()

    or a call, which tunes every layer that ``model(*example, **keywords)`` reaches, gradients included where something
    requires them, and leaves the model, its gradients and its running statistics as they were::

        tconv.autotune(model, x)

    A problem is tuned once: the winner is kept in the cache folder and is what every later process uses, tuning or not.
    It costs a few compilations and some dozen runs, on the tensors and the stream of the call that meets the problem
    first. Nothing is tuned on a CPU, and nothing while a CUDA Graph is being captured. A tuned plan belongs to one
    problem, its batch size included: with tuned plans the bits of a sample may differ from one batch size to another,
    where those of the cost model's do not. They are still the same in every run. ``TCONV_AUTOTUNE=1`` tunes all calls
    of a process; ``TCONV_AUTOTUNE=0`` makes it ignore what was tuned before.
    """
    if model is None:
        if example or keywords:
            raise TypeError("autotune() takes a model and its arguments, or nothing, got arguments without a model")
        return _tuning()
    _tune_model(model, example, keywords)
    return None


@contextmanager
def _tuning() -> Iterator[None]:
    _library.ops._autotune(True)
    try:
        yield
    finally:
        _library.ops._autotune(False)


def _tune_model(model: torch.nn.Module, example: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    wanted += [tensor for tensor in _tensors((example, keywords)) if tensor.requires_grad]
    with evaluation_mode(model), _tuning(), torch.set_grad_enabled(bool(wanted)):
        outputs = [tensor for tensor in _tensors(model(*example, **keywords)) if tensor.requires_grad]
        if outputs:
            # Returned and dropped: nothing is added to the gradients of the parameters.
            torch.autograd.grad(outputs, wanted, [torch.randn_like(tensor) for tensor in outputs], allow_unused=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
