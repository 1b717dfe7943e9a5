"""Logical block index -> block id of one sequence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from common.plan import TOKEN_TYPECODE, BlockId


class BlockTable:
    """Append-only: plans in flight hold views of `buffer`, so nothing in it ever changes.

    A sequence that must give up a block (preemption, or copy-on-write of a fork's tail before it
    was ever planned) gets a new table instead.
    """

    __slots__ = ("buffer",)

    def __init__(self, block_ids: Iterable[BlockId] = ()) -> None:
        self.buffer: array[int] = array(TOKEN_TYPECODE, block_ids)

    def __len__(self) -> int:
        return len(self.buffer)

    def append(self, block_id: BlockId) -> None:
        self.buffer.append(block_id)

    @property
    def block_ids(self) -> list[BlockId]:
        return [BlockId(i) for i in self.buffer]
