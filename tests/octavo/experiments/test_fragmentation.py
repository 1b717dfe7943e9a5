from __future__ import annotations

import pytest

from octavo.experiments.fragmentation import paged, random_lengths, reserved


def test_reserving_the_longest_wastes_half_and_paging_almost_nothing() -> None:
    lengths = random_lengths(1000, seed=42)
    assert round(reserved(lengths, 2048).waste * 100, 1) == 48.7
    assert round(paged(lengths, 16).waste * 100, 1) == 0.7


def test_the_lengths_are_those_of_the_module_level_generator() -> None:
    import random

    random.seed(42)
    assert random_lengths(1000, seed=42) == [random.randint(50, 2048) for _ in range(1000)]


@pytest.mark.parametrize(("length", "num_slots"), [(1, 16), (16, 16), (17, 32), (32, 32)])
def test_a_block_is_taken_when_a_token_needs_it(length: int, num_slots: int) -> None:
    assert paged([length], 16).num_slots == num_slots


def test_waste_of_paging_is_under_one_block_a_request() -> None:
    lengths = random_lengths(200, seed=7)
    for block_size in (1, 8, 64):
        allocation = paged(lengths, block_size)
        wasted = allocation.num_slots - allocation.num_tokens
        assert wasted <= (block_size - 1) * len(lengths)
