"""Tools for tests: which kernel families there are, and a way to insist on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ._library import ops


def families(device: str = "cpu") -> list[str]:
    """Names of the kernel families of a device, in the order in which they are asked."""
    return ops._families(device)


@contextmanager
def force_family(name: str) -> Iterator[None]:
    """Lets only the family ``name`` compute, in the whole process; a problem that it declines is an error."""
    before = ops._forced()
    ops._force(name)
    try:
        yield
    finally:
        ops._force(before)
