"""Situations in which blocks, places or the queue run out.

C numbers name acceptance cases.
"""

from __future__ import annotations

import random

import pytest

from scheduler_service.core.admission import MAX_PASSES
from scheduler_service.core.request import FinishReason, RefusedError
from tests.simulation.scenario import DEPTHS, end_of, large_world, run_steps, small_world
from tests.support.builders import make_request, random_ids


@DEPTHS
def test_c01_a_prompt_that_finds_the_pool_full_waits_and_completes(depth: int) -> None:
    world = small_world(depth=depth)
    for i in range(3):
        world.add(make_request(f"r{i}", random_ids(i, 80), max_tokens=60))
    run_steps(world, 6)
    world.add(make_request("late", random_ids(9, 200), max_tokens=8))
    run_steps(world, 2)
    counters = world.scheduler.counters
    assert counters.num_waiting > 0, "there was room for all"
    world.drain()
    assert all(end_of(world, c.request.request_id) is FinishReason.LENGTH for c in world.choices())


@DEPTHS
def test_c02_a_sequence_that_alone_outgrows_the_pool_ends_by_length(depth: int) -> None:
    world = small_world(num_blocks=4, depth=depth)
    with pytest.raises(RefusedError) as refused:
        world.scheduler.add(make_request("explicit", random_ids(1, 40), max_tokens=100))
    assert refused.value.field == "max_tokens"
    world.add(make_request("clipped", random_ids(1, 40), max_tokens=None))
    world.drain()
    assert end_of(world, "clipped") is FinishReason.LENGTH
    assert len(world.choice("clipped").tokens) == 4 * 16 - 40
    assert world.scheduler.counters.num_preemptions == 0
    world.add(make_request("probe", random_ids(2, 16)))
    world.drain()


@DEPTHS
def test_c05_mass_aborts_while_the_pool_is_saturated_leave_nothing(depth: int) -> None:
    world = small_world(depth=depth)
    rng = random.Random(5)
    for round_ in range(5):
        for i in range(64):
            prompt = random_ids(round_ * 64 + i, rng.randint(100, 150))
            world.add(make_request(f"{round_}-{i}", prompt, max_tokens=64))
        run_steps(world, 40)
        world.plan()
        for choice in world.ledger.live():
            world.abort(choice.request.request_id)
        while world.deliver():
            pass
        world.check_clean()
    assert world.scheduler.counters.num_preemptions > 0
    for i in range(8):
        world.add(make_request(f"fresh{i}", random_ids(1000 + i, 50)))
    world.drain()


def test_c07_fenced_blocks_do_not_make_victims_in_a_row() -> None:
    world = small_world(depth=2, num_blocks=12, max_num_seqs=6, max_num_batched_tokens=256)
    world.add(make_request("needy", random_ids(9, 32), max_tokens=40))
    for i in range(5):
        world.add(make_request(f"r{i}", random_ids(i, 17), max_tokens=30))
    while world.scheduler.counters.num_preemptions == 0:
        before = world.scheduler.counters.num_preemptions
        if not world.plan():
            world.deliver()
        assert world.scheduler.counters.num_preemptions - before <= 1
    for _ in range(4):
        world.plan()  # nothing more can be had before a result comes
        assert world.scheduler.counters.num_preemptions == 1
    world.drain()


@DEPTHS
def test_c20_running_fills_up_once_the_prompts_are_done(depth: int) -> None:
    world = large_world(max_num_seqs=4, depth=depth)
    for i in range(6):
        world.add(make_request(f"r{i}", random_ids(i, 150), max_tokens=200))
    run_steps(world, 600 // 64 + 1 + 2)
    assert world.scheduler.counters.num_running == 4
    world.abort("r1")
    world.abort("r2")
    # Two prompts of 150 tokens beside two decodes take five steps.
    run_steps(world, 5 + 2)
    assert world.scheduler.counters.num_running == 4
    world.drain()


@DEPTHS
def test_c22_a_head_of_queue_that_does_not_fit_is_passed_a_bounded_number_of_times(
    depth: int,
) -> None:
    world = small_world(depth=depth)
    for i in range(2):
        world.add(make_request(f"long{i}", random_ids(i, 96), max_tokens=90))
    run_steps(world, 10)
    world.add(make_request("X", random_ids(7, 240), max_tokens=4))
    for i in range(120):
        world.add(make_request(f"small{i}", random_ids(100 + i, 16), max_tokens=4))
    world.drain()
    order = [request_id for request_id in world.num_cached_tokens if request_id != "X"]
    started = list(world.num_cached_tokens).index("X")
    assert started <= 2 + MAX_PASSES, f"X was passed by {started - 2} of {len(order)}"


@DEPTHS
def test_the_seventeenth_token_takes_the_second_block_and_the_end_returns_both(depth: int) -> None:
    world = small_world(depth=depth, enable_prefix_caching=False)
    world.add(make_request("r", random_ids(1, 16), max_tokens=3))
    seen = set()
    while world.scheduler.has_work:
        if world.plan():
            plan = world.in_flight[-1].plan
            seen.add((plan.starts[0] + plan.lengths[0], plan.table_lengths[0]))
        else:
            world.deliver()
    assert seen == {(16, 1), (17, 2), (18, 2)}
    assert world.scheduler.counters.num_free_blocks == world.limits.num_blocks


@DEPTHS
def test_a_killed_clients_blocks_are_back_within_two_steps(depth: int) -> None:
    world = small_world(depth=depth, enable_prefix_caching=False)
    world.add(make_request("other", random_ids(1, 16), max_tokens=100))
    world.add(make_request("killed", random_ids(2, 100), max_tokens=100))
    run_steps(world, 8)
    while world.plan():
        pass
    before = world.scheduler.counters.num_free_blocks
    world.abort("killed")
    for _ in range(2):
        world.deliver()
        world.plan()
    assert world.scheduler.counters.num_free_blocks >= before + 7 - 1


def test_a_full_queue_refuses_and_forgets_the_request() -> None:
    world = small_world(max_num_waiting=2)
    assert world.add(make_request("a", random_ids(1, 10)))
    assert world.add(make_request("b", random_ids(2, 10)))
    assert not world.add(make_request("c", random_ids(3, 10)))
    assert not world.scheduler.abort("c")
    world.drain()
    assert world.add(make_request("c", random_ids(3, 10)))
    world.drain()
