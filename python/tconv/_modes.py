"""Running a model once without changing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation mode, so that no running statistics change; each module's own mode comes back."""
    training = [module for module in model.modules() if module.training]
    try:
        # The flag alone: train() and eval() may be a module's own and do more than that.
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
