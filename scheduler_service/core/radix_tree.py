"""The prefix cache: a radix tree whose edges hold runs of whole blocks (RadixAttention, SGLang).

Rule 1: keys are the tokens themselves under a typed root, compared edge by edge with memcmp; a hash
is never trusted. Rule 2: an acquired node and everything above it stay. Rule 3: the tree holds one
reference to each of its blocks in the pool.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from common.plan import TOKEN_TYPECODE, BlockId
from scheduler_service.core.block_pool import BlockPool
from scheduler_service.core.eviction import EvictionOrder
from scheduler_service.core.radix_node import RadixNode
from scheduler_service.core.request import CacheRoot

_TOKEN_BYTES = array(TOKEN_TYPECODE).itemsize


class Match(NamedTuple):
    """Where the longest cached prefix ends: `num_edge_blocks` into the edge of `node`."""

    node: RadixNode | None
    """None: nothing is cached under this root."""
    num_edge_blocks: int
    num_blocks: int
    """Of the whole prefix."""


_NO_MATCH = Match(None, 0, 0)


class RadixTree:
    """Block-aligned prefixes of all roots over one pool."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_bytes = block_size * _TOKEN_BYTES
        self._roots: dict[CacheRoot, RadixNode] = {}
        self._root_keys: dict[RadixNode, CacheRoot] = {}
        self._order = EvictionOrder()
        self._num_nodes = 0
        self.num_blocks = 0
        self.num_evictable = 0
        """Blocks of nodes that are not acquired."""
        self.clock = 0
        """Step counter; the scheduler advances it."""

    def roots(self) -> list[RadixNode]:
        """For invariant checks."""
        return list(self._roots.values())

    def match(self, root: CacheRoot, tokens: bytes) -> Match:
        """The longest cached prefix of whole blocks of `tokens`. Changes nothing. O(edges)."""
        node = self._roots.get(root)
        if node is None:
            return _NO_MATCH
        position, size = 0, self._block_bytes
        while True:
            child = node.children.get(tokens[position : position + size])
            if child is None:
                return Match(node, len(node.block_ids), node.depth)
            common = self._num_common_blocks(child.key, tokens, position)
            node, position = child, position + common * size
            if common < len(child.block_ids):
                return Match(child, common, position // size)

    def _num_common_blocks(self, key: bytes, tokens: bytes, position: int) -> int:
        """Whole blocks of `key` that `tokens` has at `position`; the first is known to be equal."""
        if tokens.startswith(key, position):
            return len(key) // self._block_bytes
        low, high = 1, len(key) // self._block_bytes
        while high - low > 1:
            middle = (low + high) // 2
            if tokens.startswith(key[: middle * self._block_bytes], position):
                low = middle
            else:
                high = middle
        return low

    def path_blocks(self, match: Match) -> list[BlockId]:
        """Block ids of a matched prefix, first to last."""
        runs: list[list[BlockId]] = []
        node, count = match.node, match.num_edge_blocks
        while node is not None:
            runs.append(node.block_ids[:count])
            node = node.parent
            count = len(node.block_ids) if node is not None else 0
        return [block_id for run in reversed(runs) for block_id in run]

    def num_evictable_on_path(self, match: Match) -> int:
        """Blocks of a matched prefix that acquiring it takes out of the evictable ones."""
        count, node, edge = 0, match.node, match.num_edge_blocks
        while node is not None and node.num_acquired == 0:
            count += edge
            node = node.parent
            edge = len(node.block_ids) if node is not None else 0
        return count

    def acquire_root(self, root: CacheRoot) -> RadixNode:
        """Holds the empty prefix of `root`."""
        node = self._roots.get(root)
        if node is None:
            node = self._roots[root] = RadixNode(None, b"", [], self.clock)
            self._root_keys[node] = root
        self.acquire(node)
        return node

    def acquire_match(self, match: Match) -> RadixNode:
        """Holds exactly the matched prefix; splits the edge it ends in. `match` must be fresh."""
        node = match.node
        assert node is not None, "nothing was matched"
        if match.num_edge_blocks < len(node.block_ids):
            node = self._split(node, match.num_edge_blocks)
        self.acquire(node)
        return node

    def acquire(self, node: RadixNode) -> None:
        """One more holder of `node` and of all above it. O(path)."""
        current: RadixNode | None = node
        while current is not None:
            if current.num_acquired == 0:
                self.num_evictable -= len(current.block_ids)
            current.num_acquired += 1
            current.last_used = self.clock
            current = current.parent

    def release(self, node: RadixNode) -> None:
        """Undoes one acquire of `node`."""
        current: RadixNode | None = node
        while current is not None:
            assert current.num_acquired > 0, "a node is released twice"
            current.num_acquired -= 1
            current.last_used = self.clock
            parent = current.parent
            if current.num_acquired == 0:
                self.num_evictable += len(current.block_ids)
                self._settle(current)
            current = parent

    def _settle(self, node: RadixNode) -> None:
        """`node` has lost its last holder or child: it may be evictable, or superfluous."""
        if node.is_evictable_leaf:
            self._order.push(node, num_nodes=self._num_nodes)
        elif node.num_acquired == 0 and not node.children and node in self._root_keys:
            del self._roots[self._root_keys.pop(node)]

    def extend(self, node: RadixNode, tokens: bytes, block_ids: list[BlockId]) -> RadixNode:
        """Puts whole blocks below the acquired `node`; returns the node reached, acquired instead.

        Blocks that are cached there already stay as they are (the caller keeps its own); the tree
        takes one reference to each of the others.
        """
        size, position, reached = self._block_bytes, 0, node
        while position < len(tokens):
            child = reached.children.get(tokens[position : position + size])
            if child is None:
                reached = self._append(
                    reached, node, tokens[position:], block_ids[position // size :]
                )
                break
            common = self._num_common_blocks(child.key, tokens, position)
            if common < len(child.block_ids):
                child = self._split(child, common)
            reached, position = child, position + common * size
        if reached is not node:
            self.acquire(reached)
            self.release(node)
        return reached

    def _append(
        self, reached: RadixNode, held: RadixNode, key: bytes, block_ids: list[BlockId]
    ) -> RadixNode:
        self._pool.acquire(block_ids)
        self.num_blocks += len(block_ids)
        lengthens = (
            reached is held
            and reached.num_acquired == 1
            and not reached.children
            and reached.parent is not None
        )
        if lengthens:  # the caller alone holds this leaf, so a longer edge serves nobody else worse
            reached.key += key
            reached.block_ids.extend(block_ids)
            reached.depth += len(block_ids)
            return reached
        child = RadixNode(reached, key, list(block_ids), self.clock)
        reached.children[key[: self._block_bytes]] = child
        self._num_nodes += 1
        self.num_evictable += len(block_ids)
        return child

    def _split(self, node: RadixNode, num_blocks: int) -> RadixNode:
        """Cuts the edge of `node` after `num_blocks`; returns the new upper node."""
        size, parent = self._block_bytes, node.parent
        assert parent is not None and 0 < num_blocks < len(node.block_ids)
        cut = num_blocks * size
        upper = RadixNode(parent, node.key[:cut], node.block_ids[:num_blocks], node.last_used)
        upper.num_acquired = node.num_acquired
        parent.children[node.key[:size]] = upper
        node.key, node.block_ids, node.parent = node.key[cut:], node.block_ids[num_blocks:], upper
        upper.children[node.key[:size]] = node
        self._num_nodes += 1
        return upper

    def evict(self) -> bool:
        """Frees the least recently used evictable block. False if there is none. O(log nodes)."""
        node = self._order.oldest()
        if node is None:
            return False
        self.num_evictable -= 1
        self._drop_tail(node, 1)
        return True

    def _drop_tail(self, node: RadixNode, count: int) -> None:
        """Takes the last `count` blocks of a leaf out of the tree, and the leaf itself if empty."""
        self._pool.release(node.block_ids[len(node.block_ids) - count :])
        self.num_blocks -= count
        if count < len(node.block_ids):
            del node.block_ids[len(node.block_ids) - count :]
            node.key = node.key[: len(node.block_ids) * self._block_bytes]
            node.depth -= count
            return
        parent = node.parent
        assert parent is not None
        del parent.children[node.key[: self._block_bytes]]
        node.parent, node.block_ids, node.key = None, [], b""
        self._num_nodes -= 1
        self._settle(parent)

    def trim(self, node: RadixNode, depth: int) -> RadixNode:
        """Takes what the sole holder of `node` has below `depth` blocks out of the tree.

        Nodes that others hold, or that have children, stay: their KV is valid for whoever shares
        it. Returns the node held afterwards.
        """
        while node.depth > depth and node.num_acquired == 1 and not node.children:
            parent = node.parent
            if parent is None:
                break
            count = min(len(node.block_ids), node.depth - depth)
            whole = count == len(node.block_ids)
            self._drop_tail(node, count)
            if not whole:
                break
            node = parent  # its count already includes this holder
        return node

    def clear(self) -> bool:
        """Evicts everything. False, and nothing done, while any node with blocks is acquired."""
        if self.num_evictable < self.num_blocks:
            return False
        while self.evict():
            pass
        return True
