"""Layers whose weights the user promised not to change: the copy that the kernels read is kept from call to call."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from . import _library

# Beside the modules, so that copies and pickles of them carry nothing and are not frozen.
_kept: WeakKeyDictionary[nn.Module, dict[tuple, Tensor]] = WeakKeyDictionary()

# A layer that meets more shapes than this starts over.
_MOST_SHAPES = 64


class Freezable(nn.Module):
    """A transposed convolution that can keep its weights in the order of its kernels."""

    def freeze(self) -> Freezable:
        """Keeps the weights as the kernels want them, from the next call of each input shape on, and returns the layer.

        From then on the weight must not change. A change that PyTorch counts (an optimiser's step, ``copy_``) is
        noticed; one through ``.data`` or another view is not, and the old weights stay in use. Undone by
        :meth:`unfreeze`, ``train()`` and ``load_state_dict()``. Calls that need gradients compute as if the layer were
        not frozen.
        """
        self.eval()
        _kept[self] = {}
        return self

    def unfreeze(self) -> Freezable:
        """Forgets what :meth:`freeze` kept, and returns the layer."""
        _kept.pop(self, None)
        return self

    @property
    def frozen(self) -> bool:
        return self in _kept

    def train(self, mode: bool = True) -> Freezable:
        if mode:
            self.unfreeze()
        return super().train(mode)

    def _load_from_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        self.unfreeze()
        super()._load_from_state_dict(*arguments, **keywords)

    def _apply(self, *arguments: Any, **keywords: Any) -> Freezable:
        if self.frozen:  # moved or converted: the copies belong to the old weights
            _kept[self] = {}
        return super()._apply(*arguments, **keywords)


def kept_forward(
    layer: Freezable,
    rank: int,
    input: Tensor,
    parameters: tuple,
) -> Tensor | None:
    """The output of a frozen layer, or nothing when this call is not one that can use what is kept."""
    copies = _kept.get(layer)
    if copies is None or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return None
    weight, bias = layer.weight, layer.bias
    plain = all(type(t) in (Tensor, nn.Parameter) for t in (input, weight) if t is not None)
    if not plain or torch.is_autocast_enabled(input.device.type) or input.dtype != weight.dtype or input.is_complex():
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in (input, weight, bias) if t is not None):
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._len_torch_dispatch_stack() > 0:
        return None
    batched = input if input.dim() == rank + 2 else input.unsqueeze(0)
    stream = torch.cuda.current_stream(input.device).cuda_stream if input.is_cuda else 0
    planning = _library.planning()
    key = (
        batched.shape,
        batched.stride(),
        batched.data_ptr() % 16,
        batched.dtype,
        batched.device,
        weight.data_ptr(),
        weight._version,
        parameters,
        stream,
        torch.backends.cudnn.allow_tf32,
        planning,
    )
    workspace = copies.get(key)
    output, made = _library.conv_transpose_kept(batched, weight, bias, *parameters, workspace, planning)
    if workspace is None:
        if len(copies) >= _MOST_SHAPES:
            copies.clear()
        copies[key] = made
    return output if batched is input else output.squeeze(0)
