"""Faults that random traffic has found, as the shortest story of each."""

from __future__ import annotations

import pytest

from scheduler_service.core.request import FinishReason
from tests.simulation.scenario import DEPTHS, end_of, id_of, small_world
from tests.simulation.wire import CodecWire
from tests.simulation.world import World
from tests.support.builders import make_limits, make_request, random_ids


def test_forks_of_an_admitted_prompt_take_places_from_those_behind_it() -> None:
    world = World(make_limits(max_num_seqs=3))
    world.add(make_request("forks", random_ids(1, 4), n=3, temperature=1.0))
    world.add(make_request("behind", random_ids(2, 4)))
    world.plan()
    world.deliver()
    world.plan()  # four chunks, if the second prompt came in too
    world.drain()


def test_a_block_grown_for_a_voided_step_is_not_shared_with_forks() -> None:
    world = World(make_limits(block_size=4, depth=2))
    world.add(make_request("r", random_ids(1, 8), n=3, temperature=1.0))
    world.plan()
    world.plan()  # the parent's first decode takes a third block
    world.break_stream(num_run=1)
    world.drain()


def test_a_preempted_fork_keeps_what_its_step_names_from_being_evicted() -> None:
    """The others alone see the fork confirmed, then they give up the blocks it shares with them."""
    world = World(make_limits(block_size=2, num_blocks=5, depth=2, max_num_seqs=4))
    world.add(make_request("r", random_ids(1, 8), n=3, max_tokens=2, temperature=1.0))
    world.plan()
    world.plan()  # the last free block goes to the parent alone
    world.preempt(id_of(world, "r", 0))
    world.deliver()
    world.preempt(id_of(world, "r", 1))
    world.preempt(id_of(world, "r", 2))
    world.drain()


def test_a_lone_sequence_is_not_starved_by_duplicates_of_its_own_blocks() -> None:
    world = World(make_limits(block_size=2, num_blocks=8, depth=1, max_model_len=16))
    prompt = random_ids(1, 6)
    world.add(make_request("first", prompt, max_tokens=2, num_prompt_logprobs=0))
    world.add(make_request("second", prompt, max_tokens=10, num_prompt_logprobs=0))
    world.drain()  # neither reads the cache, so the second has copies of the first's blocks
    assert len(world.choice("second").tokens) == 10
    assert world.scheduler.counters.num_starved == 0


def test_prompt_logprobs_arrive_with_a_first_token_that_is_the_last() -> None:
    world = World(make_limits())
    world.add(make_request("r", random_ids(1, 20), max_tokens=1, num_prompt_logprobs=1))
    world.drain()
    assert world.ledger.num_scored("r") == 19


@DEPTHS
def test_a_copy_that_was_voided_is_made_again(depth: int) -> None:
    """The fork is confirmed; the step that separates the choices never runs."""
    world = small_world(depth=depth, block_size=4)
    world.add(make_request("r", random_ids(1, 10), n=3, temperature=1.0))
    world.plan()
    world.deliver()
    world.plan()
    assert len(world.in_flight[0].plan.copy_sources) == 2
    world.break_stream(num_run=0)
    world.drain()


@pytest.mark.parametrize("n", [1, 2])
def test_what_a_failed_sequence_computed_last_is_not_cached(n: int) -> None:
    """Nor is it by way of its forks, which end with it."""
    world = small_world()
    prompt = random_ids(1, 40)
    world.add(make_request("fails", prompt, n=n))
    world.plan()
    world.fail_next(id_of(world, "fails"))
    world.deliver()
    assert {end_of(world, "fails", i) for i in range(n)} == {FinishReason.ERROR}
    world.add(make_request("again", prompt))
    world.drain()
    assert world.num_cached_tokens["again"] == 0


def test_prompts_that_fork_in_one_step_stay_within_the_rows_of_the_stream() -> None:
    limits = make_limits(max_num_seqs=4, num_blocks=100)
    world = World(limits, wire=CodecWire(limits.max_num_seqs))
    for i in range(8):
        world.add(make_request(f"r{i}", random_ids(i, 5), n=4, max_tokens=3, temperature=1.0))
    world.drain()


def test_a_fork_holds_what_its_parent_committed_after_it_was_planned() -> None:
    """The fork is planned while the chunk before it is in flight; then both give up their KV."""
    world = small_world(block_size=2, depth=2, max_num_batched_tokens=2)
    world.add(make_request("r", random_ids(1, 10), n=2, temperature=1.0))
    while "r" not in world.num_cached_tokens or world.scheduler.counters.num_running < 2:
        if not world.plan():
            world.deliver()
    world.deliver()  # the chunk before the fork
    world.preempt(id_of(world, "r", 0))
    world.plan()
    world.preempt(id_of(world, "r", 1))
    world.deliver()  # the fork; a step that names the second choice is in flight
    world.drain()
