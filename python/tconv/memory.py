"""Memory that the library keeps on a CPU for later results."""

from __future__ import annotations

import torch


def release_memory() -> None:
    """Gives the system back what is kept of large CPU results that are no longer used.

    ``TCONV_KEEP_MEMORY`` limits it, in MiB (default: 1024, at most an eighth of the machine's memory; 0: none). It
    counts as the process's own, but for what exceeds a sixteenth of the machine's memory: that the system may take at
    any time, as soon as it is short of it.
    """
    torch.ops.tconv._release_memory()
