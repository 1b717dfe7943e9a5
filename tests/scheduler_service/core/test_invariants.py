"""Each invariant is broken by hand once, and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from common.plan import BlockId
from scheduler_service.core import invariants
from scheduler_service.core.kv_cache import Fence
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.core.sequence import Sequence
from tests.simulation.scenario import run_until
from tests.simulation.world import World
from tests.support.builders import make_limits, make_request, random_ids


@pytest.fixture
def scheduler() -> Scheduler:
    """Two choices that share their prompt and decode, and one request that waits."""
    world = World(make_limits(block_size=4, max_num_seqs=2, depth=1))
    world.add(make_request("runs", random_ids(1, 10), n=2, max_tokens=20, temperature=1.0))
    world.add(make_request("waits", random_ids(2, 9)))
    run_until(world, "runs", 5)
    invariants.check(world.scheduler)
    return world.scheduler


def _first(scheduler: Scheduler) -> Sequence:
    return next(iter(scheduler.state.running.values()))


def _lose_a_block(scheduler: Scheduler) -> None:
    scheduler.state.kv.pool.take()


def _free_a_named_block(scheduler: Scheduler) -> None:
    scheduler.state.kv.pool.release([_first(scheduler).table.block_ids[-1]])


def _let_go_of_a_node(scheduler: Scheduler) -> None:
    node = _first(scheduler).node
    assert node is not None
    scheduler.state.kv.tree.release(node)


def _count_a_block_too_much(scheduler: Scheduler) -> None:
    scheduler.state.kv.tree.num_evictable += 1


def _share_a_written_block(scheduler: Scheduler) -> None:
    one, two = scheduler.state.running.values()
    block_id = one.table.block_ids[-1]
    scheduler.state.kv.pool.acquire([block_id])
    scheduler.state.kv.pool.release([two.table.block_ids[-1]])
    two.table.buffer[-1] = block_id


def _keep_a_fence(scheduler: Scheduler) -> None:
    block_id = scheduler.state.kv.pool.take()
    assert block_id is not None
    ended = scheduler.state.last_ended_step
    scheduler.state.kv.fences.append(Fence(ended, [BlockId(block_id)], None, 1))


def _cache_what_is_not_computed(scheduler: Scheduler) -> None:
    _first(scheduler).num_computed_tokens = 3


def _change_a_token(scheduler: Scheduler) -> None:
    _first(scheduler).tokens[0] += 1


def _plan_past_the_end(scheduler: Scheduler) -> None:
    _first(scheduler).num_planned_tokens += 2


def _lose_a_sequence(scheduler: Scheduler) -> None:
    state = scheduler.state
    state.waiting.remove(next(iter(state.waiting)))


def _outlive_the_end(scheduler: Scheduler) -> None:
    _first(scheduler).max_len = len(_first(scheduler))


@pytest.mark.parametrize(
    ("corrupt", "name"),
    [
        (_lose_a_block, "I1"),
        (_free_a_named_block, "I1"),
        (_let_go_of_a_node, "I1"),
        (_count_a_block_too_much, "I1"),
        (_share_a_written_block, "I2"),
        (_keep_a_fence, "I5"),
        (_cache_what_is_not_computed, "I4"),
        (_change_a_token, "I4"),
        (_plan_past_the_end, "I6"),
        (_lose_a_sequence, "I7"),
        (_outlive_the_end, "I7"),
    ],
)
def test_a_broken_invariant_is_named(
    scheduler: Scheduler, corrupt: Callable[[Scheduler], None], name: str
) -> None:
    corrupt(scheduler)
    with pytest.raises(invariants.BrokenInvariantError, match=name):
        invariants.check(scheduler)
