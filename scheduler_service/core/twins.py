"""Which prefixes are being computed right now, so that twins compute a shared prompt once."""

from __future__ import annotations

from scheduler_service.core.radix_node import RadixNode
from scheduler_service.core.radix_tree import Match
from scheduler_service.core.sequence import Sequence, token_bytes

MAX_TWIN_WAITS = 512
"""Steps a sequence may be passed over for its twin. The twin's end or progress frees it long before
that; the bound keeps a stalled twin from holding others."""

PrefixKey = tuple[RadixNode, bytes]


class PrefixesInProgress:
    """For each running sequence: the next full block it has not confirmed, below its node.

    A waiting sequence whose longest match ends at that node and goes on with the same tokens would
    compute the same block again.
    """

    __slots__ = ("_block_size", "_key_of", "_owners")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._owners: dict[PrefixKey, Sequence] = {}
        self._key_of: dict[Sequence, PrefixKey] = {}

    def update(self, owner: Sequence) -> None:
        """To be called when `owner` starts and whenever it has committed blocks."""
        self.forget(owner)
        first = owner.num_committed_blocks * self._block_size
        if owner.node is None or first + self._block_size > len(owner):
            return
        key = owner.node, token_bytes(owner.tokens[first : first + self._block_size])
        if self._owners.setdefault(key, owner) is owner:
            self._key_of[owner] = key

    def forget(self, owner: Sequence) -> None:
        key = self._key_of.pop(owner, None)
        if key is not None:
            del self._owners[key]

    def twin_key(self, sequence: Sequence, match: Match) -> PrefixKey | None:
        """Names the block that `sequence`, cached up to `match`, would compute next, if another
        sequence is computing it."""
        node = match.node
        if node is None or match.num_edge_blocks < len(node.block_ids):
            return None
        first = match.num_blocks * self._block_size
        key = node, token_bytes(sequence.tokens[first : first + self._block_size])
        return key if key in self._owners else None

    def is_in_progress(self, key: PrefixKey) -> bool:
        return key in self._owners
