"""Who holds which block: pool, tree and fences behind one door.

Rule 1: a sequence names blocks through its table (one reference each) and holds the tree's nodes
above what it has committed. Rule 2: what a sequence gives up while a step in flight names it is
*fenced*: it is released when that step's result has come. Rule 3: the tree gets a block only after
a result has confirmed its KV.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from common.plan import BlockId
from scheduler_service.core.block_pool import BlockPool
from scheduler_service.core.block_table import BlockTable
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.radix_node import RadixNode
from scheduler_service.core.radix_tree import Match, RadixTree
from scheduler_service.core.sequence import Sequence, token_bytes

_NO_MATCH = Match(None, 0, 0)


@dataclass(frozen=True, slots=True)
class Fence:
    """Holdings of a sequence that is gone, released once `step_id` has ended."""

    step_id: int
    block_ids: list[BlockId]
    node: RadixNode | None
    num_yielded: int
    """Blocks that become free or evictable then."""


class KVCacheManager:
    """Logical owner of every block of one executor. Knows nothing of tensors or of the queue."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self.pool = BlockPool(limits.num_blocks)
        self.tree = RadixTree(self.pool, limits.block_size)
        self.fences: deque[Fence] = deque()

    @property
    def num_available(self) -> int:
        """Blocks to be had at once, by eviction where needed."""
        return self.pool.num_free + self.tree.num_evictable

    @property
    def num_fenced_yield(self) -> int:
        """Blocks to be had once the steps in flight have ended."""
        return sum(fence.num_yielded for fence in self.fences)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._limits.block_size)

    # Prefixes

    def max_cached_blocks(self, sequence: Sequence) -> int:
        """The last token is always computed, so that there are logits to sample from."""
        return (len(sequence) - 1) // self._limits.block_size

    def reads_cache(self, sequence: Sequence) -> bool:
        """Prompt logprobs need every prompt position computed."""
        return (
            self._limits.enable_prefix_caching and sequence.spec.params.num_prompt_logprobs is None
        )

    def lookup(self, sequence: Sequence) -> Match:
        """The longest cached prefix that `sequence` may take over."""
        if not self.reads_cache(sequence):
            return _NO_MATCH
        count = self.max_cached_blocks(sequence) * self._limits.block_size
        tokens = token_bytes(sequence.tokens[:count])
        return self.tree.match(sequence.request.cache_root, tokens)

    def num_available_after(self, match: Match) -> int:
        """What is left to allocate once `match` is taken over."""
        return self.num_available - self.tree.num_evictable_on_path(match)

    def start(self, sequence: Sequence, match: Match) -> None:
        """Gives a waiting sequence its table: the matched prefix, which counts as computed."""
        if match.num_blocks > 0:
            block_ids = self.tree.path_blocks(match)
            self.pool.acquire(block_ids)
            sequence.table = BlockTable(block_ids)
            sequence.node = self.tree.acquire_match(match)
        elif self._limits.enable_prefix_caching:
            sequence.node = self.tree.acquire_root(sequence.request.cache_root)
        sequence.num_committed_blocks = match.num_blocks
        sequence.num_computed_tokens = match.num_blocks * self._limits.block_size
        sequence.num_planned_tokens = sequence.num_computed_tokens

    def commit(self, sequence: Sequence) -> None:
        """Puts the full blocks that a result has just confirmed into the tree (I4)."""
        size, first = self._limits.block_size, sequence.num_committed_blocks
        end = sequence.num_computed_tokens // size
        if end <= first or sequence.node is None:
            return
        tokens = token_bytes(sequence.tokens[first * size : end * size])
        blocks = [BlockId(i) for i in sequence.table.buffer[first:end]]
        sequence.node = self.tree.extend(sequence.node, tokens, blocks)
        sequence.num_committed_blocks = end

    def trim(self, sequence: Sequence) -> None:
        """Takes what lies beyond the sequence's own tokens out of the tree, if nobody shares it."""
        if sequence.node is not None:
            depth = len(sequence) // self._limits.block_size
            sequence.node = self.tree.trim(sequence.node, depth)

    # Blocks

    def take_block(self) -> BlockId | None:
        """A block of one's own, by eviction if none is free; None if there is none to be had."""
        block_id = self.pool.take()
        if block_id is None and self.tree.evict():
            block_id = self.pool.take()
        return block_id

    def grow(self, sequence: Sequence, num_blocks: int) -> int:
        """Appends up to `num_blocks` to the table; returns how many there were."""
        for count in range(num_blocks):
            block_id = self.take_block()
            if block_id is None:
                return count
            sequence.table.append(block_id)
        return num_blocks

    def share(self, parent: Sequence, child: Sequence) -> None:
        """The child names every block that the parent has planned to fill, and holds the same node.

        The parent may own one more: grown for a step that was voided.
        """
        block_ids = parent.table.block_ids[: self.num_blocks_for(parent.num_planned_tokens)]
        self.pool.acquire(block_ids)
        child.table = BlockTable(block_ids)
        if parent.node is not None:
            self.tree.acquire(parent.node)
        child.node = parent.node
        child.num_committed_blocks = parent.num_committed_blocks

    def replace_tail(self, sequence: Sequence, block_id: BlockId) -> BlockId:
        """Swaps the last block of a fork that was never planned; returns the old, still held."""
        *kept, old = sequence.table.block_ids
        sequence.table = BlockTable([*kept, block_id])
        return old

    def num_yielded(self, sequence: Sequence) -> int:
        """Blocks that become free or evictable when `sequence` gives up what it holds."""
        num_refs = self.pool.num_refs
        count = sum(num_refs(block_id) == 1 for block_id in sequence.table.block_ids)
        node = sequence.node
        while node is not None and node.num_acquired == 1:
            count += len(node.block_ids)
            node = node.parent
        return count

    # Giving up

    def release(self, sequence: Sequence, *, last_ended_step: int) -> None:
        """Gives up everything the sequence holds, at once or behind the last step naming it."""
        fence = Fence(
            sequence.last_step_id,
            sequence.table.block_ids,
            sequence.node,
            self.num_yielded(sequence),
        )
        sequence.give_up_kv()
        if fence.step_id <= last_ended_step:
            self._release(fence)
        else:
            self.fences.append(fence)

    def end_step(self, step_id: int) -> None:
        """The result of `step_id` has come, or the executor is known to have stopped it."""
        for _ in range(len(self.fences)):
            fence = self.fences.popleft()
            if fence.step_id <= step_id:
                self._release(fence)
            else:
                self.fences.append(fence)

    def _release(self, fence: Fence) -> None:
        self.pool.release(reversed(fence.block_ids))
        if fence.node is not None:
            self.tree.release(fence.node)

    def shed_duplicates(self, sequence: Sequence) -> None:
        """Takes blocks that the sequence has copies of out of the tree, and commits no more.

        For a sequence alone in a full pool: it must not starve on duplicates that only it holds.
        What lies below a duplicate goes too; the table keeps the blocks of it that are its own.
        """
        if sequence.node is None:
            return
        cached = self.tree.path_blocks(Match(sequence.node, len(sequence.node.block_ids), 0))
        own = next(
            (i for i, block in enumerate(cached) if block != sequence.table.buffer[i]), len(cached)
        )
        sequence.node = self.tree.trim(sequence.node, own)
        sequence.num_committed_blocks = 1 << 60
