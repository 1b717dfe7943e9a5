"""Choices of one request that share a half-filled block: the copy-on-write of n > 1.

When a prompt ends inside a block, its choices all name that block. Before the first of them writes
into it, every owner but one gets a copy in that same plan (I2). The one is the parent, whose table
has been sent already; the others were never planned, so their tables may still change.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.plan import BlockId
from scheduler_service.core.sequence import Sequence


@dataclass(slots=True, eq=False)
class SharedTail:
    block_id: BlockId
    owners: list[Sequence]
    """The parent first, as long as it lives."""


class SharedTails:
    """All half-filled blocks that several live tables name."""

    __slots__ = ("_by_sequence",)

    def __init__(self) -> None:
        self._by_sequence: dict[Sequence, SharedTail] = {}

    def __len__(self) -> int:
        return len(self._by_sequence)

    def add(self, owners: list[Sequence]) -> None:
        # The parent's table may go on; a fork's ends in the shared block.
        tail = SharedTail(owners[-1].table.block_ids[-1], owners)
        for owner in owners:
            self._by_sequence[owner] = tail

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._by_sequence

    def get(self, sequence: Sequence) -> SharedTail:
        """KeyError if the sequence shares no tail."""
        return self._by_sequence[sequence]

    def leave(self, sequence: Sequence) -> None:
        """`sequence` no longer names the block; the last owner left writes in place."""
        tail = self._by_sequence.pop(sequence, None)
        if tail is None:
            return
        tail.owners.remove(sequence)
        if len(tail.owners) == 1:
            del self._by_sequence[tail.owners.pop()]
