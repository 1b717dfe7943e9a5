# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Copies whole blocks within the pool, as copy-on-write needs before a step.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023, section 4.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.transfers import Upload

_ELEMENTS = 2048

Pair = tuple[int, int]


@triton.jit
def block_copy_kernel(
    pool_ptr,  # [num_planes, num_blocks, block_elements] any dtype, dense
    sources_ptr,  # [num_pairs] int64
    destinations_ptr,  # [num_pairs] int64
    plane_stride,
    block_elements,
    ELEMENTS: tl.constexpr,
):
    """Equals `reference.copy_blocks`, if no block is written by one pair and named by another.

    Grid: (num_pairs, num_planes, ceil(block_elements / ELEMENTS)); a plane is the keys or the
    values of one layer. Masks: elements past the block. Moves bits; accumulates nothing.
    """
    pair = tl.program_id(0)
    plane = tl.program_id(1).to(tl.int64) * plane_stride
    source = tl.load(sources_ptr + pair) * block_elements
    destination = tl.load(destinations_ptr + pair) * block_elements
    elements = tl.program_id(2) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = elements < block_elements
    moved = tl.load(pool_ptr + plane + source + elements, mask=inside)
    tl.store(pool_ptr + plane + destination + elements, moved, mask=inside)


def copy_blocks(pool: Tensor, sources: Tensor, destinations: Tensor, upload: Upload) -> None:
    """As if pair by pair in order. pool: [layers, 2, blocks, ...] dense; ids int64 on the host."""
    for wave in waves(sources.tolist(), destinations.tolist()):
        copy_at_once(pool, *upload(list(np.array(wave, np.int64).T)))


def copy_at_once(pool: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Pairs in any order. ids: int64 where the pool is; none is written by one pair and named by
    another."""
    num_layers, sides, num_blocks = pool.shape[:3]
    block_elements = pool[0, 0, 0].numel()
    tiles = triton.cdiv(block_elements, _ELEMENTS)
    block_copy_kernel[(len(sources), num_layers * sides, tiles)](
        pool,
        sources,
        destinations,
        num_blocks * block_elements,
        block_elements,
        ELEMENTS=_ELEMENTS,
        num_warps=4,
    )


def waves(sources: Sequence[int], destinations: Sequence[int]) -> Iterator[list[Pair]]:
    """Cuts an ordered list of copies into runs whose pairs may be done at the same time.

    A run ends before a pair that touches a block which the run writes, or writes one it reads.
    """
    wave: list[Pair] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, destination in zip(sources, destinations, strict=True):
        if written & {source, destination} or destination in read:
            yield wave
            wave, read, written = [], set(), set()
        wave.append((source, destination))
        read.add(source)
        written.add(destination)
    if wave:
        yield wave
