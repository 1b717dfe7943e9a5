"""Blocks by number: which are free, and how many holders the others have.

A holder is a live table, the radix tree, or an endpoint of a copy in flight. The pool knows no
sequence: it counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.plan import BlockId


class BlockPool:
    """A free list and reference counts over `num_blocks` blocks. Every call is O(blocks named)."""

    __slots__ = ("_free", "_num_refs", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = [BlockId(i) for i in range(num_blocks - 1, -1, -1)]
        self._num_refs = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free_blocks(self) -> tuple[BlockId, ...]:
        """For invariant checks."""
        return tuple(self._free)

    def num_refs(self, block_id: BlockId) -> int:
        return self._num_refs[block_id]

    def take(self) -> BlockId | None:
        """A free block with one holder, or None if there is none."""
        if not self._free:
            return None
        block_id = self._free.pop()
        self._num_refs[block_id] = 1
        return block_id

    def acquire(self, block_ids: Iterable[BlockId]) -> None:
        """One more holder for each. They must have one already."""
        num_refs = self._num_refs
        for block_id in block_ids:
            assert num_refs[block_id] > 0, f"block {block_id} is free"
            num_refs[block_id] += 1

    def release(self, block_ids: Iterable[BlockId]) -> None:
        """One holder less for each; a block without any is free at once."""
        num_refs = self._num_refs
        for block_id in block_ids:
            assert num_refs[block_id] > 0, f"block {block_id} is released twice"
            num_refs[block_id] -= 1
            if num_refs[block_id] == 0:
                self._free.append(block_id)
