"""One edge of the radix tree: a run of whole blocks with their tokens."""

from __future__ import annotations

from common.plan import BlockId


class RadixNode:
    """The edge into a node, and what hangs below it. Identity matters, so no equality.

    A split keeps the *lower* part in the old object: whoever acquired the node still holds the same
    prefix, down to the same `depth`.
    """

    __slots__ = ("block_ids", "children", "depth", "key", "last_used", "num_acquired", "parent")

    def __init__(
        self, parent: RadixNode | None, key: bytes, block_ids: list[BlockId], last_used: int
    ) -> None:
        self.parent = parent
        """None: a root, or a node that was evicted."""
        self.key = key
        """int32 tokens of all blocks of the edge."""
        self.block_ids = block_ids
        self.children: dict[bytes, RadixNode] = {}
        """By the tokens of each child's first block."""
        self.num_acquired = 0
        """Acquisitions of this node or of one below it."""
        self.last_used = last_used
        """Step counter at the last acquire or release."""
        self.depth: int = (parent.depth if parent else 0) + len(block_ids)
        """Blocks from the root down to the end of this edge."""

    @property
    def is_evictable_leaf(self) -> bool:
        return self.parent is not None and not self.children and self.num_acquired == 0
