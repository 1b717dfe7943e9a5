from __future__ import annotations

from array import array

import pytest

from scheduler_service.core.events import SequenceKey
from scheduler_service.core.kv_cache import KVCacheManager
from scheduler_service.core.sequence import Sequence
from tests.support.builders import make_limits, make_request
from tests.support.plans import make_spec

PROMPT = list(range(10, 20))


def _manager(*, num_blocks: int = 8, enable_prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(
        make_limits(
            block_size=4, num_blocks=num_blocks, enable_prefix_caching=enable_prefix_caching
        )
    )


def _sequence(
    sequence_id: int, prompt: list[int] = PROMPT, *, num_prompt_logprobs: int | None = None
) -> Sequence:
    request = make_request(str(sequence_id), prompt, num_prompt_logprobs=num_prompt_logprobs)
    return Sequence(
        spec=make_spec(sequence_id, len(prompt), params=request.params),
        request=request,
        key=SequenceKey(str(sequence_id), 0),
        arrival=sequence_id,
        tokens=array("i", prompt),
        max_len=40,
        end_token_ids=frozenset(),
    )


def _compute(kv: KVCacheManager, sequence: Sequence, num_tokens: int) -> None:
    """As a result that confirms `num_tokens` in all does."""
    kv.grow(sequence, kv.num_blocks_for(num_tokens) - len(sequence.table))
    sequence.num_computed_tokens = sequence.num_planned_tokens = num_tokens
    kv.commit(sequence)


def _started(kv: KVCacheManager, sequence: Sequence) -> Sequence:
    kv.start(sequence, kv.lookup(sequence))
    return sequence


def test_nothing_is_cached_before_it_is_confirmed() -> None:
    kv, first = _manager(), _sequence(1)
    _started(kv, first)
    kv.grow(first, 3)
    assert kv.lookup(_sequence(2)).num_blocks == 0
    _compute(kv, first, 5)
    assert kv.lookup(_sequence(2)).num_blocks == 1
    _compute(kv, first, 10)
    assert kv.lookup(_sequence(2)).num_blocks == 2


@pytest.mark.parametrize(("length", "num_blocks"), [(8, 1), (9, 2), (4, 0), (5, 1), (3, 0)])
def test_the_last_token_of_a_prompt_is_never_taken_from_the_cache(
    length: int, num_blocks: int
) -> None:
    kv = _manager()
    _compute(kv, _started(kv, _sequence(1)), 10)
    assert kv.lookup(_sequence(2, PROMPT[:length])).num_blocks == num_blocks


def test_a_hit_counts_as_computed_and_shares_the_blocks() -> None:
    kv = _manager()
    first = _started(kv, _sequence(1))
    _compute(kv, first, 10)
    second = _started(kv, _sequence(2))
    assert second.table.block_ids == first.table.block_ids[:2]
    assert second.num_computed_tokens == second.num_planned_tokens == 8
    assert kv.num_available == 8 - 3


def test_taking_a_hit_over_is_counted_against_what_is_left() -> None:
    kv = _manager(num_blocks=3)
    first = _started(kv, _sequence(1))
    _compute(kv, first, 10)
    kv.release(first, last_ended_step=0)
    assert kv.num_available == 3
    assert kv.num_available_after(kv.lookup(_sequence(2))) == 1


def test_prompt_logprobs_skip_reading_the_cache_and_still_fill_it() -> None:
    kv = _manager()
    first = _started(kv, _sequence(1, num_prompt_logprobs=1))
    _compute(kv, first, 10)
    assert kv.lookup(_sequence(2, num_prompt_logprobs=1)).num_blocks == 0
    assert kv.lookup(_sequence(3)).num_blocks == 2


def test_without_prefix_caching_a_released_block_is_free_at_once() -> None:
    kv = _manager(enable_prefix_caching=False)
    first = _started(kv, _sequence(1))
    _compute(kv, first, 10)
    assert kv.lookup(_sequence(2)).num_blocks == 0
    kv.release(first, last_ended_step=0)
    assert kv.pool.num_free == 8


def test_what_a_step_in_flight_names_is_fenced_until_that_step_ends() -> None:
    kv = _manager()
    first = _started(kv, _sequence(1))
    _compute(kv, first, 10)
    first.last_step_id = 7
    kv.release(first, last_ended_step=6)
    assert (kv.num_available, kv.num_fenced_yield) == (5, 3)
    kv.end_step(6)
    assert kv.num_available == 5
    kv.end_step(7)
    assert (kv.num_available, kv.num_fenced_yield) == (8, 0)


def test_a_duplicate_prefix_leaves_both_sequences_their_own_blocks() -> None:
    kv = _manager()
    first, second = _started(kv, _sequence(1)), _started(kv, _sequence(2))
    _compute(kv, first, 10)
    kv.grow(second, 3)
    own = second.table.block_ids
    _compute(kv, second, 10)
    assert second.table.block_ids == own
    assert not set(own) & set(first.table.block_ids)
    assert kv.tree.num_blocks == 2
    kv.release(second, last_ended_step=0)
    assert kv.pool.num_free == 8 - 3


def test_growing_evicts_what_nobody_holds_and_stops_at_what_somebody_does() -> None:
    kv = _manager(num_blocks=4)
    first = _started(kv, _sequence(1))
    _compute(kv, first, 8)
    kv.release(first, last_ended_step=0)
    other = _started(kv, _sequence(2, [50, 51, 52, 53, 54]))
    assert kv.grow(other, 3) == 3
    assert kv.tree.num_blocks == 1
    assert kv.grow(other, 2) == 1
    assert len(other.table) == 4


def test_a_fork_shares_every_block_and_lets_go_of_its_own_references_only() -> None:
    kv = _manager()
    parent, child = _started(kv, _sequence(1)), _sequence(2)
    _compute(kv, parent, 10)
    kv.share(parent, child)
    assert child.table.block_ids == parent.table.block_ids
    assert kv.num_yielded(child) == 0
    kv.release(parent, last_ended_step=0)
    assert kv.num_available == 8 - 3
    kv.release(child, last_ended_step=0)
    assert kv.num_available == 8


def test_shedding_duplicates_frees_what_only_the_sequence_kept_cached() -> None:
    kv = _manager(num_blocks=6)
    first, second = _started(kv, _sequence(1)), _started(kv, _sequence(2))
    _compute(kv, first, 10)
    _compute(kv, second, 10)
    kv.release(first, last_ended_step=0)
    before = kv.num_available
    kv.shed_duplicates(second)
    assert kv.num_available == before + 2
    _compute(kv, second, 12)
    assert kv.tree.num_blocks == 0


def test_shedding_keeps_the_blocks_the_table_shares_with_the_tree() -> None:
    kv = _manager(num_blocks=6)
    _compute(kv, _started(kv, _sequence(1)), 10)
    second = _started(kv, _sequence(2))
    kv.shed_duplicates(second)
    assert second.node is not None
    assert second.node.depth == 2


def test_shedding_takes_own_blocks_below_a_duplicate_out_of_the_tree_too() -> None:
    """The sequence computed a block that another had cached meanwhile, and went on below it."""
    kv = _manager(num_blocks=4)
    first, second = _started(kv, _sequence(1, PROMPT[:5])), _started(kv, _sequence(2))
    _compute(kv, first, 4)
    _compute(kv, second, 8)
    kv.release(first, last_ended_step=0)
    assert kv.grow(second, 2) == 1
    kv.shed_duplicates(second)
    assert (kv.pool.num_free, kv.tree.num_blocks) == (1, 0)
    assert kv.grow(second, 1) == 1
