from __future__ import annotations

import random
from collections import Counter

import pytest

from common.plan import BlockId
from scheduler_service.core.block_pool import BlockPool


def test_every_block_is_taken_once_and_then_there_is_none() -> None:
    pool = BlockPool(5)
    taken = [pool.take() for _ in range(5)]
    assert sorted(block for block in taken if block is not None) == [0, 1, 2, 3, 4]
    assert pool.take() is None
    assert pool.num_free == 0


def test_a_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(1)
    block = pool.take()
    assert block is not None
    pool.acquire([block])
    pool.release([block])
    assert pool.take() is None
    pool.release([block])
    assert pool.take() == block


def test_a_second_release_is_a_bug_of_ours() -> None:
    pool = BlockPool(2)
    block = pool.take()
    assert block is not None
    pool.release([block])
    with pytest.raises(AssertionError, match="released twice"):
        pool.release([block])
    with pytest.raises(AssertionError, match="is free"):
        pool.acquire([block])


def test_random_holders_add_up_after_every_call() -> None:
    rng = random.Random(1)
    pool, held = BlockPool(8), Counter[BlockId]()
    for _ in range(5000):
        blocks = list(held.elements())
        match rng.choice(("take", "acquire", "release")):
            case "take":
                block = pool.take()
                assert (block is None) == (len(held) == 8)
                if block is not None:
                    assert held[block] == 0
                    held[block] = 1
            case "acquire" if blocks:
                block = rng.choice(blocks)
                pool.acquire([block])
                held[block] += 1
            case "release" if blocks:
                block = rng.choice(blocks)
                pool.release([block])
                held[block] -= 1
        held += Counter()
        assert [pool.num_refs(BlockId(i)) for i in range(8)] == [held[BlockId(i)] for i in range(8)]
        assert sorted([*pool.free_blocks, *held]) == list(range(8))
        assert pool.num_free == 8 - len(held)
