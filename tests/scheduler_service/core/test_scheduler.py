from __future__ import annotations

from array import array

import pytest

from common.plan import SequenceId, StepPlan, StepResult
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.request import CacheRoot, FinishReason
from scheduler_service.core.scheduler import Scheduler
from tests.simulation.scenario import end_of, id_of, run_steps, run_until, small_world
from tests.simulation.world import World
from tests.support.builders import make_limits, make_request, random_ids
from tests.support.shadow_model import ShadowModel, expected_output


def test_nothing_to_do_is_no_plan() -> None:
    scheduler = Scheduler(make_limits())
    assert scheduler.schedule() is None
    assert not scheduler.has_work
    assert not scheduler.abort("nobody")
    scheduler.finish(SequenceId(7), 1, FinishReason.STOP)
    scheduler.preempt(SequenceId(7))
    scheduler.void_steps()
    scheduler.reset()
    assert scheduler.take_events().finished == []


@pytest.mark.parametrize("depth", [1, 2])
def test_no_more_steps_than_depth_are_in_flight(depth: int) -> None:
    scheduler = Scheduler(make_limits(depth=depth))
    scheduler.add(make_request("r", [1, 2, 3], max_tokens=20))
    plans = [scheduler.schedule() for _ in range(4)]
    assert sum(plan is not None for plan in plans) == scheduler.num_in_flight == depth


def test_a_result_that_does_not_answer_its_plan_is_no_result() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(make_request("r", [1, 2, 3]))
    plan = scheduler.schedule()
    assert plan is not None
    with pytest.raises(ValueError, match="sampled 1 tokens, the result has 2"):
        scheduler.apply(StepResult(step_id=plan.step_id, tokens=array("i", [1, 2])))


def test_decodes_come_first_then_prompts_in_order_of_admission() -> None:
    world = small_world(max_num_batched_tokens=32)
    world.add(make_request("decodes", random_ids(1, 8), max_tokens=30))
    run_steps(world, 2)
    world.add(make_request("first", random_ids(2, 40)))
    world.add(make_request("second", random_ids(3, 40)))
    plans = run_steps(world, 3)
    assert [list(plan.lengths) for plan in plans] == [[1, 31], [1, 9, 22], [1, 1, 18]]
    assert [plan.num_decodes for plan in plans] == [1, 1, 2]


@pytest.mark.parametrize("depth", [1, 2])
def test_c19_a_running_stream_gets_a_token_in_every_step_of_a_long_prompt(depth: int) -> None:
    world = small_world(depth=depth, num_blocks=600, max_model_len=8192)
    world.add(make_request("victim", random_ids(1, 16), max_tokens=200))
    run_until(world, "victim", 20)
    world.add(make_request("long", random_ids(2, 4000), max_tokens=1))
    while world.choice("long").end is None:
        before = len(world.choice("victim").tokens)
        world.plan()
        if depth == 2:
            world.plan()
        world.deliver()
        assert len(world.choice("victim").tokens) == before + 1


def test_what_is_past_the_length_end_is_never_planned() -> None:
    world = small_world(depth=2)
    world.add(make_request("r", random_ids(1, 10), max_tokens=5))
    plans = run_steps(world, 100)
    assert sum(plan.num_tokens for plan in plans) == 10 + 4


@pytest.mark.parametrize(("depth", "overrun"), [(1, 0), (2, 1)])
def test_a_stop_overruns_by_at_most_depth_less_one(depth: int, overrun: int) -> None:
    model = ShadowModel(vocab_size=1000, eos_token_id=2, eos_period=5)
    world = World(make_limits(depth=depth), model)
    world.add(make_request("r", random_ids(4, 10), max_tokens=100, eos_token_ids=[2]))
    num_planned = sum(plan.num_tokens for plan in run_steps(world, 1000))
    num_outputs = len(world.choice("r").tokens)
    assert end_of(world, "r") is FinishReason.STOP
    assert num_planned == 10 + num_outputs - 1 + overrun


@pytest.mark.parametrize("depth", [1, 2])
def test_c41_finish_rewinds_and_keeps_nothing_beyond_in_the_tree(depth: int) -> None:
    world = small_world(depth=depth, block_size=4)
    prompt = random_ids(1, 10)
    request = make_request("r", prompt, max_tokens=40)
    world.add(request)
    run_until(world, "r", 20)
    world.plan()
    world.finish(id_of(world, "r"), 5)
    while world.deliver():
        pass
    outputs = expected_output(world.model, prompt, 30, request.params)
    longer = make_request("longer", [*prompt, *outputs, 1])
    assert world.scheduler.match_length(longer) == (10 + 5) // 4 * 4
    world.check_clean()


def test_a_stop_token_is_reported_and_eos_is_not() -> None:
    model = ShadowModel(vocab_size=1000)
    prompt = random_ids(1, 10)
    request = make_request("r", prompt, max_tokens=9)
    third = expected_output(model, prompt, 3, request.params)[2]
    for name, expected in (("stop", third), ("eos", None)):
        world = small_world()
        ids = {f"{name}_token_ids": [third]}
        world.add(make_request("r", prompt, max_tokens=9, **ids))  # type: ignore[arg-type]
        world.drain()
        end = world.choice("r").end
        assert end is not None
        assert (end.num_output_tokens, end.stop_token_id) == (3, expected)


def test_expiry_heeds_the_request_that_lives_under_the_id_now() -> None:
    world = small_world()
    world.scheduler.add(make_request("r", [1], deadline=1.0))
    world.scheduler.abort("r")
    world.scheduler.take_events()
    world.add(make_request("r", [1], deadline=5.0))
    assert world.scheduler.next_deadline == 1.0
    world.expire(3.0)
    assert world.choice("r").end is None
    world.expire(5.0)
    assert end_of(world, "r") is FinishReason.EXPIRED


def test_the_last_in_order_move_first_and_only_those_without_kv() -> None:
    world = small_world(max_num_seqs=1)
    for i in range(4):
        world.add(make_request(f"r{i}", random_ids(i, 10)))
    world.plan()
    taken = world.scheduler.take_waiting(2)
    assert [(request.request_id, outputs) for request, outputs in taken] == [("r2", ()), ("r3", ())]
    assert [r.request_id for r, _ in world.scheduler.take_waiting(9)] == ["r1"]
    assert world.scheduler.take_waiting(9) == []


def test_a_live_choice_has_one_id_and_a_past_one_none() -> None:
    world = small_world()
    world.add(make_request("r", random_ids(1, 10), n=2, temperature=1.0))
    run_until(world, "r", 1)
    ids = [id_of(world, "r", choice) for choice in range(2)]
    assert len(set(ids)) == 2
    world.abort("r")
    assert world.scheduler.sequence_id_of(SequenceKey("r", 0)) is None


def test_the_prefix_cache_is_reset_only_when_nobody_holds_any_of_it() -> None:
    world = small_world()
    request = make_request("r", random_ids(1, 40), max_tokens=20)
    world.add(request)
    run_until(world, "r", 2)
    assert not world.scheduler.reset_prefix_cache()
    world.drain()
    assert world.scheduler.match_length(request) == 32
    assert world.scheduler.reset_prefix_cache()
    assert world.scheduler.match_length(request) == 0
    assert world.scheduler.counters.num_free_blocks == world.limits.num_blocks


def test_a_router_is_told_of_prefixes_under_the_requests_own_root_alone() -> None:
    world = small_world()
    prompt = random_ids(1, 40)
    world.add(make_request("r", prompt, max_tokens=1))
    world.drain()
    assert world.scheduler.match_length(make_request("same", prompt)) == 32
    salted = make_request("salted", prompt, cache_root=CacheRoot(cache_salt="a"))
    assert world.scheduler.match_length(salted) == 0


def test_released_rows_are_named_once_and_before_they_are_used_again() -> None:
    world = small_world(num_blocks=8)
    for i in range(4):
        world.add(make_request(f"r{i}", random_ids(i, 20), max_tokens=30))
    rows: set[SequenceId] = set()
    while world.scheduler.has_work:
        if world.plan():
            plan: StepPlan = world.in_flight[-1].plan
            assert set(plan.released) <= rows
            rows.difference_update(plan.released)
            rows.update(spec.sequence_id for spec in (*plan.sequences, *plan.sampled))
        else:
            world.deliver()
    assert world.scheduler.counters.num_preemptions > 0
