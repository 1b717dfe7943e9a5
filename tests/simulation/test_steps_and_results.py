"""Results that come late, twice or never, and sequences that move meanwhile.

C numbers name acceptance cases.
"""

from __future__ import annotations

from array import array

import pytest

from common.plan import StepResult
from scheduler_service.core.request import FinishReason, Request
from tests.simulation.scenario import DEPTHS, end_of, id_of, run_steps, run_until, small_world
from tests.simulation.world import World
from tests.support.builders import make_limits, make_request, random_ids
from tests.support.shadow_model import ShadowModel


def _known(world: World, request: Request) -> Request:
    """A request whose prompt is all that is known of the first choice so far."""
    tokens = [*request.prompt_token_ids, *world.choice(request.request_id).tokens]
    return make_request("known", tokens)


@DEPTHS
@pytest.mark.parametrize("preempt_after", [(5,), (40,), (90,), (5, 40)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_c23_a_preempted_sequence_recomputes_prompt_and_outputs(
    depth: int, preempt_after: tuple[int, ...], temperature: float
) -> None:
    world = small_world(depth=depth, max_num_batched_tokens=32)
    request = make_request("A", random_ids(23, 3), max_tokens=120, temperature=temperature, seed=7)
    world.add(request)
    for count in preempt_after:
        run_until(world, "A", count)
        sequence_id = id_of(world, "A")
        world.preempt(sequence_id)
        while world.deliver():
            pass
        known = 3 + len(world.choice("A").tokens)
        cached = world.scheduler.match_length(_known(world, request))
        plans = run_steps(world, -(-(known - cached) // 32))
        covered = [(plan.starts[0], plan.starts[0] + plan.lengths[0]) for plan in plans]
        assert [start for start, _ in covered] == [cached, *(end for _, end in covered[:-1])]
        assert covered[-1][1] == known, "not all of prompt and outputs was computed again"
        assert [list(plan.num_samples) for plan in plans] == [[0]] * (len(plans) - 1) + [[1]]
    world.drain()
    assert len(world.choice("A").tokens) == 120
    assert world.scheduler.counters.num_preemptions == len(preempt_after)


@DEPTHS
@pytest.mark.parametrize("preempt_after", [(5,), (40,), (5, 40)])
def test_a_sequence_preempted_in_flight_gets_no_token_twice(
    depth: int, preempt_after: tuple[int, ...]
) -> None:
    """Its steps in flight are still to be answered when it waits again."""
    world = small_world(depth=depth, max_num_batched_tokens=32)
    world.add(make_request("A", random_ids(23, 3), max_tokens=120, temperature=0.8, seed=7))
    for count in preempt_after:
        run_until(world, "A", count)
        world.preempt(id_of(world, "A"))
    world.drain()
    assert len(world.choice("A").tokens) == 120
    assert world.scheduler.counters.num_preemptions == len(preempt_after)


@DEPTHS
def test_moved_outputs_are_outputs_still(depth: int) -> None:
    """They count to max_tokens and min_tokens where the request goes on, and are not told again."""
    world = World(
        make_limits(depth=depth), ShadowModel(vocab_size=1000, eos_token_id=2, eos_period=2)
    )
    world.add(make_request("r", random_ids(3, 20), max_tokens=12, min_tokens=6, eos_token_ids=[2]))
    run_until(world, "r", 3)
    sequence_id = id_of(world, "r")
    world.preempt(sequence_id)
    while world.deliver():
        pass
    world.take_waiting(1)
    assert not world.scheduler.has_work
    world.drain()
    assert 6 < len(world.choice("r").tokens) <= 12


@DEPTHS
def test_c34_results_nobody_waits_for_are_ignored_and_counted(depth: int) -> None:
    world = small_world(depth=depth)
    world.add(make_request("a", random_ids(1, 20)))
    world.plan()
    old = world.in_flight[0]
    world.break_stream(num_run=1)
    assert old.result is not None
    stale = world.scheduler.counters.num_stale_results
    world.scheduler.apply(old.result)  # of a stream that ended
    world.check()
    world.plan()
    world.deliver()
    world.repeat_result(0)  # twice
    world.abort("a")
    world.add(make_request("a2", random_ids(1, 20)))
    world.plan()
    world.repeat_result(0)  # older than the step that runs now
    world.scheduler.apply(StepResult(step_id=10_000, tokens=array("i", [7])))  # of no plan at all
    world.check()
    assert world.scheduler.counters.num_stale_results == stale + 4
    world.drain()


@DEPTHS
def test_c34_a_result_is_not_given_to_a_new_request_under_the_old_id(depth: int) -> None:
    """Results of the first run come while the second, of another prompt, lives: those that were in
    flight, and old ones once more. The ledger takes no token that the second does not get alone."""
    world = small_world(depth=depth)
    world.add(make_request("a", random_ids(1, 20), max_tokens=30))
    run_until(world, "a", 3)
    world.plan()
    late = list(world.delivered)
    assert world.in_flight
    world.abort("a")
    world.ledger.forget("a")
    world.add(make_request("a", random_ids(2, 20), max_tokens=5))
    while world.in_flight and world.in_flight[0].plan.num_decodes:
        world.deliver()  # of a step that samples the first run
    world.plan()
    stale = world.scheduler.counters.num_stale_results
    for result in late:
        world.scheduler.apply(result)
        world.check()
    assert world.choice("a").tokens == []
    assert world.scheduler.counters.num_stale_results == stale + len(late)
    world.drain()
    assert len(world.choice("a").tokens) == 5


@DEPTHS
def test_a_deadline_that_passes_in_the_queue_costs_no_device_work(depth: int) -> None:
    world = small_world(depth=depth, max_num_seqs=1)
    world.add(make_request("runs", random_ids(1, 16), max_tokens=20))
    world.add(make_request("waits", random_ids(2, 30), max_tokens=20, deadline=5.0))
    run_steps(world, 3)
    world.expire(4.9)
    assert world.choice("waits").end is None
    world.expire(5.0)
    assert end_of(world, "waits") is FinishReason.EXPIRED
    world.drain()
    assert world.scheduler.counters.num_computed_tokens == 16 + 19


def test_planning_a_step_never_changes_the_one_in_flight() -> None:
    """Preempting, forking, growing and committing between two plans leave the first as it was."""
    world = small_world(depth=2, num_blocks=12)
    for i in range(4):
        world.add(make_request(f"r{i}", random_ids(i, 20), n=2, max_tokens=30, temperature=1.0))
    while world.scheduler.has_work:
        world.plan()  # compares every plan in flight with what it was
        world.plan()
        world.deliver()


@DEPTHS
def test_one_failed_sequence_leaves_its_batch_mates_alone(depth: int) -> None:
    world = small_world(depth=depth)
    for i in range(4):
        world.add(make_request(f"r{i}", random_ids(i, 10), n=2, temperature=1.0))
    run_steps(world, 2)
    bad = id_of(world, "r1", 1)
    world.fail_next(bad)
    world.drain()
    ends = {c.key: c.end.reason for c in world.choices() if c.end is not None}
    assert [key for key, reason in ends.items() if reason is FinishReason.ERROR] == [("r1", 1)]
