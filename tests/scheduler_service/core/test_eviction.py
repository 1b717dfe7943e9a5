from __future__ import annotations

import random
from array import array

from common.plan import BlockId
from scheduler_service.core.eviction import EvictionOrder
from scheduler_service.core.radix_node import RadixNode


def _leaf(root: RadixNode, last_used: int) -> RadixNode:
    key = array("i", [last_used]).tobytes()
    return RadixNode(root, key, [BlockId(last_used)], last_used)


def test_the_least_recently_used_leaf_comes_first_and_stays_in_the_order() -> None:
    order, root = EvictionOrder(), RadixNode(None, b"", [], 0)
    leaves = [_leaf(root, last_used) for last_used in (5, 3, 9)]
    for leaf in leaves:
        order.push(leaf, num_nodes=3)
    assert order.oldest() is leaves[1]
    assert order.oldest() is leaves[1]


def test_entries_of_leaves_used_or_held_since_are_passed_over() -> None:
    order, root = EvictionOrder(), RadixNode(None, b"", [], 0)
    used, held, left = (_leaf(root, last_used) for last_used in (1, 2, 3))
    for leaf in (used, held, left):
        order.push(leaf, num_nodes=3)
    used.last_used = 4
    held.num_acquired = 1
    assert order.oldest() is left
    order.push(used, num_nodes=3)
    left.parent = None  # evicted
    assert order.oldest() is used


def test_the_order_survives_the_dropping_of_stale_entries() -> None:
    rng = random.Random(1)
    order, root = EvictionOrder(), RadixNode(None, b"", [], 0)
    leaves = [_leaf(root, i) for i in range(10)]
    for clock in range(10, 2000):
        leaf = rng.choice(leaves)
        leaf.last_used = clock
        order.push(leaf, num_nodes=len(leaves))
    for expected in sorted(leaves, key=lambda leaf: leaf.last_used):
        found = order.oldest()
        assert found is not None
        if expected.last_used >= 10:
            assert found is expected
            found.parent = None
