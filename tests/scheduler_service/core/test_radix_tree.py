"""The prefix cache against a plain set of prefixes, and its sizes against a recount."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence

import pytest

from common.plan import BlockId
from scheduler_service.core.block_pool import BlockPool
from scheduler_service.core.radix_node import RadixNode
from scheduler_service.core.radix_tree import RadixTree
from scheduler_service.core.request import CacheRoot

ROOT = CacheRoot()


def _key(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()


class _Cache:
    """A tree with a pool, as one sequence after another would use it."""

    def __init__(self, num_blocks: int = 32, block_size: int = 2) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool, block_size)

    def insert(self, tokens: Sequence[int], root: CacheRoot = ROOT) -> RadixNode:
        """Puts the whole blocks of `tokens` in and returns the node, acquired."""
        tokens = tokens[: len(tokens) // self.block_size * self.block_size]
        match = self.tree.match(root, _key(tokens))
        node = self.tree.acquire_match(match) if match.num_blocks else self.tree.acquire_root(root)
        blocks = [self._take() for _ in range(len(tokens) // self.block_size - match.num_blocks)]
        node = self.tree.extend(node, _key(tokens[match.num_blocks * self.block_size :]), blocks)
        self.pool.release(blocks)  # the table's reference; the tree has its own
        return node

    def _take(self) -> BlockId:
        block = self.pool.take()
        while block is None:
            assert self.tree.evict()
            block = self.pool.take()
        return block

    def cached(self, tokens: Iterable[int], root: CacheRoot = ROOT) -> int:
        return self.tree.match(root, _key(tokens)).num_blocks


def _recount(tree: RadixTree, holders: Iterable[RadixNode]) -> tuple[int, int]:
    """(blocks, evictable blocks), counted from the nodes and the list of acquisitions."""
    below: dict[RadixNode, int] = {}
    for node in holders:
        current: RadixNode | None = node
        while current is not None:
            below[current] = below.get(current, 0) + 1
            current = current.parent
    num_blocks = num_evictable = 0
    stack = tree.roots()
    while stack:
        node = stack.pop()
        assert node.num_acquired == below.get(node, 0)
        assert node.depth == (node.parent.depth if node.parent else 0) + len(node.block_ids)
        num_blocks += len(node.block_ids)
        num_evictable += len(node.block_ids) if node.num_acquired == 0 else 0
        stack.extend(node.children.values())
    return num_blocks, num_evictable


def test_only_whole_blocks_that_are_equal_from_the_start_match() -> None:
    cache = _Cache(block_size=2)
    cache.insert([1, 2, 3, 4, 5, 6])
    assert cache.cached([1, 2, 3, 4, 5, 6, 7]) == 3
    assert cache.cached([1, 2, 3, 4, 5]) == 2
    assert cache.cached([1, 2, 3, 9, 5, 6]) == 1
    assert cache.cached([3, 4, 5, 6]) == 0
    assert cache.cached([1]) == 0


def test_a_match_inside_an_edge_names_its_own_blocks_only() -> None:
    cache = _Cache(block_size=2)
    node = cache.insert([1, 2, 3, 4, 5, 6])
    match = cache.tree.match(ROOT, _key([1, 2, 3, 4, 9, 9]))
    assert cache.tree.path_blocks(match) == node.block_ids[:2]


def test_matching_changes_nothing() -> None:
    cache = _Cache(block_size=2)
    node = cache.insert([1, 2, 3, 4, 5, 6])
    cache.tree.match(ROOT, _key([1, 2, 9, 9]))
    assert node.depth == len(node.block_ids) == 3
    assert cache.tree.roots()[0].children == {_key([1, 2]): node}


def test_a_holder_of_a_partial_match_holds_no_more_than_it_matched() -> None:
    cache = _Cache(num_blocks=4, block_size=2)
    cache.tree.release(cache.insert([1, 2, 3, 4, 5, 6]))
    cache.tree.acquire_match(cache.tree.match(ROOT, _key([1, 2])))
    assert cache.tree.num_evictable == 2
    while cache.tree.evict():
        pass
    assert cache.cached([1, 2, 3, 4, 5, 6]) == 1


def test_a_split_keeps_the_holders_of_the_lower_part() -> None:
    cache = _Cache(block_size=2)
    lower = cache.insert([1, 2, 3, 4, 5, 6])
    upper = cache.tree.acquire_match(cache.tree.match(ROOT, _key([1, 2])))
    assert (upper.num_acquired, lower.num_acquired) == (2, 1)
    cache.tree.release(upper)
    assert not cache.tree.evict()
    cache.tree.release(lower)
    assert cache.tree.num_evictable == 3


def test_eviction_takes_the_least_recently_used_leaf_from_its_tail() -> None:
    cache = _Cache(block_size=1)
    for clock, tokens in enumerate(([1, 2, 3], [1, 9], [5, 6])):
        cache.tree.clock = clock
        cache.tree.release(cache.insert(tokens))
    for expected in ([1, 2], [1], [1]):  # [1, 2, 3] loses 3, then 2
        assert cache.tree.evict()
        assert cache.cached([1, 2, 3]) == len(expected)
        if expected == [1]:
            break
    assert cache.cached([1, 9]) == 2
    assert cache.tree.evict()
    assert (cache.cached([1, 9]), cache.cached([5, 6])) == (1, 2)


def test_what_another_cached_meanwhile_stays_and_its_finder_keeps_its_own_blocks() -> None:
    cache = _Cache(block_size=2)
    tree, pool = cache.tree, cache.pool
    mine = [cache._take(), cache._take()]
    node = tree.acquire_root(ROOT)
    other = cache.insert([1, 2, 3, 4])
    reached = tree.extend(node, _key([1, 2, 3, 4]), mine)
    assert reached is other
    assert tree.path_blocks(tree.match(ROOT, _key([1, 2, 3, 4]))) == other.block_ids
    assert [pool.num_refs(block) for block in mine] == [1, 1]


def test_roots_that_differ_in_any_field_share_nothing() -> None:
    cache = _Cache(block_size=2)
    roots = [
        CacheRoot(),
        CacheRoot(tenant="a"),
        CacheRoot(cache_salt="a"),
        CacheRoot(adapter="a"),
        CacheRoot(model_revision="a"),
    ]
    for count, root in enumerate(roots):
        assert cache.cached([1, 2, 3, 4], root) == 0
        cache.insert([1, 2, 3, 4], root)
        assert cache.tree.num_blocks == 2 * (count + 1)


def test_a_root_without_blocks_and_holders_is_forgotten() -> None:
    cache = _Cache(block_size=2)
    for i in range(50):
        cache.tree.release(cache.insert([1, 2], CacheRoot(tenant=str(i))))
    assert cache.tree.clear()
    assert cache.tree.roots() == []


def test_clear_does_nothing_while_a_block_is_held() -> None:
    cache = _Cache(block_size=2)
    node = cache.insert([1, 2, 3, 4])
    cache.tree.release(cache.insert([7, 8]))
    assert not cache.tree.clear()
    assert cache.tree.num_blocks == 3
    cache.tree.release(node)
    assert cache.tree.clear()
    assert (cache.tree.num_blocks, cache.pool.num_free) == (0, 32)


def test_trim_takes_out_only_what_its_holder_alone_needs() -> None:
    cache = _Cache(block_size=1)
    shared = cache.insert([1, 2])
    node = cache.insert([1, 2, 3, 4, 5])
    node = cache.tree.trim(node, 4)
    assert cache.cached([1, 2, 3, 4, 5]) == 4
    node = cache.tree.trim(node, 0)
    assert cache.cached([1, 2, 3, 4, 5]) == 2
    cache.tree.release(node)
    assert cache.tree.num_evictable == 0
    cache.tree.release(shared)
    assert cache.tree.num_evictable == 2


def test_c10_blocks_that_collide_under_a_linear_hash_do_not_match() -> None:
    """Pairs moved along the kernel of (31, 1), swapped pairs, trailing zeros, large ids."""
    rng = random.Random(10)
    cache = _Cache(num_blocks=64, block_size=16)
    base = [rng.randrange(70_000, 1 << 20) for _ in range(16)]
    variants = []
    for d in (1, 5, -3):
        for i in range(0, 15, 5):
            for delta in ((d, -31 * d), (31 * d, -d)):
                variant = list(base)
                variant[i] += delta[0]
                variant[i + 1] += delta[1]
                variants.append(variant)
    variants.append([base[1], base[0], *base[2:]])
    variants.append([*base[:15], 0])
    variants.append([token & 0xFFFF for token in base])
    cache.insert([*base, *base])
    for variant in variants:
        assert cache.cached([*variant, *base]) == 0
        assert cache.cached([*base, *variant]) == 1


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 5, 8])
def test_c04_sizes_equal_a_recount_after_every_operation(block_size: int, alphabet: int) -> None:
    """Insert, match inside an edge, acquire, release, split, evict, trim in random order; what a
    finish or an abort does to the tree is a release, with or without a trim."""
    rng = random.Random(alphabet)
    cache = _Cache(num_blocks=40, block_size=block_size)
    tree, held = cache.tree, list[RadixNode]()
    num_splits = 0
    for clock in range(2000):
        tree.clock = clock
        length = rng.randint(1, 6)
        # Blocks of one alphabet differ in their last token alone.
        blocks = ([0] * (block_size - 1) + [rng.randrange(alphabet)] for _ in range(length))
        tokens = [token for block in blocks for token in block]
        match rng.randrange(6):
            case 0 | 1 if len(held) < 6:
                held.append(cache.insert(tokens, CacheRoot(tenant=str(rng.randrange(2)))))
            case 2:
                found = tree.match(CacheRoot(tenant="0"), _key(tokens))
                if found.num_blocks:
                    assert found.node is not None
                    num_splits += found.num_edge_blocks < len(found.node.block_ids)
                    held.append(tree.acquire_match(found))
            case 3 | 4 if held:
                node = held.pop(rng.randrange(len(held)))
                before = node.num_acquired
                tree.release(node)
                assert node.num_acquired == before - 1
            case 5 if held:
                node = held.pop(rng.randrange(len(held)))
                held.append(tree.trim(node, rng.randint(0, node.depth)))
            case _:
                tree.evict()
        num_blocks, num_evictable = _recount(tree, held)
        assert (tree.num_blocks, tree.num_evictable) == (num_blocks, num_evictable)
        num_protected = num_blocks - num_evictable
        assert cache.pool.num_free + num_evictable + num_protected == 40
    assert num_splits > 9
    for node in held:
        tree.release(node)
    while tree.evict():
        assert _recount(tree, []) == (tree.num_blocks, tree.num_evictable)
    assert tree.num_blocks == tree.num_evictable == 0
    assert cache.pool.num_free == 40


def test_c10_no_two_of_many_random_blocks_match() -> None:
    """A hundred thousand keys beside each other under one root, and as many that are not there."""
    count, size = 100_000, 16 * 4
    data = random.Random(10).randbytes(2 * count * size)
    keys = [data[i * size : (i + 1) * size] for i in range(2 * count)]
    cache = _Cache(num_blocks=count, block_size=16)
    tree = cache.tree
    owner: dict[bytes, BlockId] = {}
    for key in keys[:count]:
        node = tree.extend(tree.acquire_root(ROOT), key, [cache._take()])
        owner[key] = node.block_ids[0]
    assert len(set(owner.values())) == tree.num_blocks == count
    for key in keys[:count:10]:
        assert tree.path_blocks(tree.match(ROOT, key)) == [owner[key]]
    assert not any(tree.match(ROOT, key).num_blocks for key in keys[count:])
