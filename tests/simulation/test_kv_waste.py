"""How much of the KV memory that live tables hold is empty: the tails of last blocks, not more."""

from __future__ import annotations

import random
import statistics
from array import array
from collections import deque

import pytest

from common.plan import StepPlan, StepResult
from scheduler_service.core.scheduler import Scheduler
from tests.support.builders import make_limits, make_request, random_ids

NUM_REQUESTS = 96
MEAN_LENGTH = 500


def mixed_lengths(seed: int) -> list[tuple[int, int]]:
    """(prompt, output) tokens: short questions, chats and long documents."""
    rng = random.Random(seed)
    kinds = ((32, 200, 16, 400), (200, 600, 50, 300), (600, 1800, 16, 256))
    lengths = []
    for _ in range(NUM_REQUESTS):
        shortest, longest, fewest, most = rng.choices(kinds, weights=(3, 3, 2))[0]
        lengths.append((rng.randint(shortest, longest), rng.randint(fewest, most)))
    return lengths


def sampled_waste(depth: int, lengths: list[tuple[int, int]]) -> list[float]:
    """Of each step, as a server samples it: after the result, before the next plan."""
    limits = make_limits(
        num_blocks=4096,
        max_num_seqs=32,
        max_num_batched_tokens=512,
        max_model_len=2304,
        depth=depth,
    )
    scheduler = Scheduler(limits)
    for i, (num_prompt, num_output) in enumerate(lengths):
        scheduler.add(make_request(f"r{i}", random_ids(i, num_prompt), max_tokens=num_output))
    in_flight: deque[StepPlan] = deque()
    waste = []
    while scheduler.has_work:
        while (plan := scheduler.schedule()) is not None:
            in_flight.append(plan)
        done = in_flight.popleft()
        tokens = array("i", [7]) * len(done.sampled)
        scheduler.apply(StepResult(step_id=done.step_id, tokens=tokens))
        if scheduler.live_kv.num_slots:
            waste.append(scheduler.live_kv.waste)
    return waste


@pytest.mark.parametrize("depth", [1, 2])
def test_mixed_requests_of_500_tokens_waste_under_4_percent(depth: int) -> None:
    lengths = mixed_lengths(seed=1)
    assert statistics.fmean(map(sum, lengths)) >= MEAN_LENGTH
    waste = sampled_waste(depth, lengths)
    assert len(waste) > 500
    assert 0.0 < statistics.fmean(waste) < 0.04


def test_cached_blocks_of_ended_requests_do_not_count() -> None:
    scheduler = Scheduler(make_limits(num_blocks=64))
    scheduler.add(make_request("r", random_ids(1, 40), max_tokens=1))
    plan = scheduler.schedule()
    assert plan is not None
    assert scheduler.live_kv == (0, 48), "allocated, not computed yet"
    scheduler.apply(StepResult(step_id=plan.step_id, tokens=array("i", [7])))
    assert scheduler.counters.num_evictable_blocks == 2
    assert scheduler.live_kv == (0, 0)
    assert scheduler.live_kv.waste == 0.0
