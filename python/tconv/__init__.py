"""Transposed convolutions, forward and backward: a drop-in for PyTorch's."""

from . import _library, _vmap  # noqa: F401  (registers the operators)
from .convert import convert
from .exporter import export
from .functional import conv_transpose1d, conv_transpose2d, conv_transpose3d
from .memory import release_memory
from .modules import (
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
)
from .prepare import prepare
from .tuning import autotune

__version__ = _library.version()

__all__ = [
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "autotune",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convert",
    "export",
    "prepare",
    "release_memory",
]
