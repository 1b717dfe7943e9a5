"""Memory for what every step reads and writes, in huge pages where the kernel gives them.

A pool of scattered blocks otherwise misses the processor's page tables at every block; what a step
puts down between its parts, and its logits, every few kilobytes (2 to 3% of a step of 8 to 32
sequences).
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor


def zeroed(num_bytes: int) -> Tensor:
    """[num_bytes] uint8 that takes memory only where it is touched."""
    # A shared mapping, mmap's default, gets huge pages by another switch that is mostly off.
    pages = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)[:num_bytes]
