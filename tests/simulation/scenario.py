"""What scenarios have in common: the two pools of the acceptance cases, and ways to run on."""

from __future__ import annotations

from typing import Any

import pytest

from common.plan import SequenceId, StepPlan
from scheduler_service.core.request import FinishReason
from tests.simulation.world import World
from tests.support.builders import make_limits

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def small_world(**limits: Any) -> World:
    """24 blocks of 16, 512 tokens per sequence, 8 places, 64 tokens per step."""
    return World(make_limits(**limits))


def large_world(**limits: Any) -> World:
    """600 blocks of 16 and 8192 tokens per sequence."""
    return small_world(**{"num_blocks": 600, "max_model_len": 8192, **limits})


def run_steps(world: World, count: int) -> list[StepPlan]:
    """Runs `count` steps to their results, as fast as depth allows; returns their plans."""
    plans: list[StepPlan] = []
    while len(plans) < count and world.scheduler.has_work:
        if world.plan():
            plans.append(world.in_flight[-1].plan)
        else:
            world.deliver()
    while world.deliver():
        pass
    return plans


def run_until(world: World, request_id: str, num_outputs: int) -> None:
    """Runs until the first choice has at least so many outputs; steps may be in flight then."""
    while len(world.choice(request_id).tokens) < num_outputs:
        if not world.plan():
            world.deliver()


def end_of(world: World, request_id: str, choice: int = 0) -> FinishReason:
    end = world.choice(request_id, choice).end
    assert end is not None
    return end.reason


def id_of(world: World, request_id: str, choice: int = 0) -> SequenceId:
    """Of a live choice."""
    sequence_id = world.scheduler.sequence_id_of(world.choice(request_id, choice).key)
    assert sequence_id is not None
    return sequence_id
