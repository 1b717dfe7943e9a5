"""How many prompt tokens a step takes beside decodes, by what steps cost."""

from __future__ import annotations

import itertools
import math

import pytest

from scheduler_service.core.step_budget import DecodeLoad, StepBudget, StepCosts
from tests.simulation.scenario import DEPTHS, large_world, run_until
from tests.simulation.world import World
from tests.support.builders import make_limits, make_request, random_ids

COSTS = StepCosts(step=8e-3, token=1e-3, attended=1e-6)
ONE_DECODE = DecodeLoad(num_decodes=1, num_attended=100, num_sequences=1)


def bounded(costs: StepCosts, max_stall: float, decodes: DecodeLoad) -> StepBudget:
    budget = StepBudget(make_limits(max_num_batched_tokens=512))
    budget.take_decodes(decodes.num_decodes)
    budget.bound_prompts(costs, max_stall, decodes)
    return budget


@pytest.mark.parametrize("start", [0, 100, 5000])
@pytest.mark.parametrize("stall", [1.5, 2.0, 8.0])
def test_what_is_allowed_makes_the_step_as_long_as_it_may_be(start: int, stall: float) -> None:
    length = bounded(COSTS, stall, ONE_DECODE).prompt_tokens(start, 10_000)
    alone = COSTS.of(1, 100)
    assert length >= 1

    def whole(length: int) -> float:
        return alone + COSTS.token * length + COSTS.attended * length * (start + length / 2)

    assert whole(length) <= max(stall * alone, whole(1))
    assert stall * alone < whole(length + 1)


def test_prompts_that_cost_half_beside_decodes_are_twice_as_long() -> None:
    costs = COSTS._replace(attended=0.0)
    length = bounded(costs, 2.0, ONE_DECODE).prompt_tokens(0, 10_000)
    twice = bounded(costs._replace(beside=0.5), 2.0, ONE_DECODE).prompt_tokens(0, 10_000)
    assert twice in (2 * length, 2 * length + 1)


def test_several_prompts_share_one_allowance() -> None:
    budget = bounded(COSTS, 2.0, ONE_DECODE)
    allowed = budget.prompt_tokens(0, 10_000)
    budget.take_prompt(0, allowed - 2)
    assert budget.prompt_tokens(0, 10_000) == 2
    budget.take_prompt(0, 3)
    assert budget.is_spent
    assert budget.prompt_tokens(0, 10_000) == 0


def test_the_token_budget_holds_beside_the_allowance() -> None:
    budget = bounded(COSTS, 1000.0, ONE_DECODE)
    assert budget.prompt_tokens(0, 10_000) == 511
    assert budget.prompt_tokens(0, 40) == 40


@pytest.mark.parametrize("costs", [StepCosts(0, 0, 0), StepCosts(0, 1.0, 0), StepCosts(0, 0, 1.0)])
def test_some_token_is_allowed_whatever_steps_cost(costs: StepCosts) -> None:
    assert bounded(costs, 1.0, ONE_DECODE).prompt_tokens(1000, 5) >= 1


def test_those_who_wait_for_a_place_count_as_decodes() -> None:
    alone = bounded(COSTS, 2.0, ONE_DECODE)
    burst = bounded(COSTS, 2.0, ONE_DECODE._replace(num_sequences=16))
    gained = burst.prompt_tokens(0, 10_000) - alone.prompt_tokens(0, 10_000)
    assert gained == pytest.approx(2 * 15, abs=2)


def stalls(world: World, request_id: str) -> list[float]:
    """What each step costs until the prompt of `request_id` is computed beside others' decodes,
    over a step in which it decodes with them."""
    ratios = []
    while not world.choice(request_id).tokens:
        if not world.plan():
            world.deliver()
            continue
        plan = world.in_flight[-1].plan
        load = DecodeLoad(
            num_decodes=plan.num_decodes,
            num_attended=sum(plan.starts[: plan.num_decodes]) + plan.num_decodes,
            num_sequences=plan.num_decodes + 1,
        )
        ratios.append(COSTS.of(plan.num_tokens, plan.num_attended) / load.full_step(COSTS))
    return ratios


@DEPTHS
@pytest.mark.parametrize("stall", [1.5, 2.0])
def test_no_decode_waits_longer_than_it_may_for_a_long_prompt(depth: int, stall: float) -> None:
    world = large_world(depth=depth, max_num_batched_tokens=512, max_decode_stall=stall)
    for i in range(4):
        world.add(make_request(f"stream {i}", random_ids(i, 30), max_tokens=2000))
        run_until(world, f"stream {i}", 1)
    world.scheduler.expect(COSTS)
    world.add(make_request("long", random_ids(9, 1500)))
    ratios = stalls(world, "long")
    assert max(ratios) <= stall * 1.01
    # And it is made use of.
    assert sorted(ratios)[len(ratios) // 2] > stall * 0.9


@DEPTHS
def test_prompts_alone_take_the_whole_budget(depth: int) -> None:
    world = large_world(depth=depth, max_num_batched_tokens=512)
    world.scheduler.expect(COSTS)
    world.add(make_request("long", random_ids(9, 1500)))
    world.plan()
    assert world.in_flight[-1].plan.num_tokens == 512


def test_without_costs_or_bound_prompts_take_the_whole_budget() -> None:
    for costs, stall in itertools.product((None, COSTS), (2.0, math.inf)):
        world = large_world(max_num_batched_tokens=512, max_decode_stall=stall)
        world.add(make_request("stream", random_ids(1, 30), max_tokens=2000))
        run_until(world, "stream", 1)
        if costs is not None:
            world.scheduler.expect(costs)
        world.add(make_request("long", random_ids(9, 1500)))
        world.plan()
        is_bounded = costs is not None and stall == 2.0
        assert (world.in_flight[-1].plan.num_tokens < 512) is is_bounded
