"""Which cached block goes first: least recently used, from the tails of leaves nobody holds."""

from __future__ import annotations

import heapq

from scheduler_service.core.radix_node import RadixNode

_SLACK = 64
"""Stale entries tolerated before the heap is rebuilt."""


class EvictionOrder:
    """A heap of evictable leaves by last use. Entries may be stale: they are checked when popped.

    Push and pop are O(log entries); the heap is rebuilt when stale entries outnumber nodes, so that
    is amortised.
    """

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._serial = 0

    def push(self, node: RadixNode, *, num_nodes: int) -> None:
        """`node` has just become an evictable leaf, or is one still."""
        if len(self._heap) > 2 * num_nodes + _SLACK:
            self._drop_stale()
        self._serial += 1
        heapq.heappush(self._heap, (node.last_used, self._serial, node))

    def oldest(self) -> RadixNode | None:
        """The leaf to evict from next; it stays in the order. None if nothing is evictable."""
        heap = self._heap
        while heap:
            last_used, _, node = heap[0]
            if node.is_evictable_leaf and node.last_used == last_used:
                return node
            heapq.heappop(heap)
        return None

    def _drop_stale(self) -> None:
        newest = {
            node: (last_used, serial, node)
            for last_used, serial, node in sorted(self._heap, key=lambda entry: entry[1])
            if node.is_evictable_leaf and node.last_used == last_used
        }
        self._heap = list(newest.values())
        heapq.heapify(self._heap)
