"""What is said of all chunks together is what is said of each."""

from __future__ import annotations

import random

import numpy as np

from common.plan import StepPlan
from executor_service.runner.validate import PlanChecker
from executor_service.runner.whole_plan import only_writers_read, sound_blocks
from tests.executor_service.runner.test_validate import SPEC
from tests.support.plans import add_chunk, make_spec


def random_plan(choose: random.Random) -> StepPlan:
    """Chunks of which one in four or so has something wrong."""
    plan = StepPlan(step_id=1)
    for i in range(choose.randrange(5)):
        start, length = choose.choice([(0, 20), (16, 1), (19, 1), (-1, 3), (190, 20), (5, 0)])
        count = max(0, start + length) + choose.choice([0, 0, 0, -1, 3])
        tokens = [choose.choice([5, 5, 5, 5, 5, 5, 319]) for _ in range(max(0, count))]
        table = [choose.randrange(20) for _ in range(choose.choice([2, 2, 2, 14, 1]))]
        if choose.random() < 0.1 and tokens:
            tokens[choose.randrange(len(tokens))] = choose.choice([-1, 320, 2**31 - 1])
        if choose.random() < 0.1:
            table[choose.randrange(len(table))] = choose.choice([-1, 20])
        add_chunk(plan, make_spec(i, 20), tokens, table, start=start, length=length)
        if choose.random() < 0.05:
            plan.token_lengths[i] += 4
        if choose.random() < 0.05:
            plan.table_lengths[i] += 1
    return plan


def test_a_plan_is_sound_if_each_chunk_is() -> None:
    choose, checker, found = random.Random(2), PlanChecker(SPEC), []
    for _ in range(3000):
        plan = random_plan(choose)
        problems = [checker._chunk_problem(plan, i) for i in range(plan.num_chunks)]
        ids = sound_blocks(plan, SPEC)
        assert (ids is not None) == (bool(problems) and not any(problems)), problems
        if ids is not None:
            needed = [-(-(s + n) // 16) for s, n in zip(plan.starts, plan.lengths, strict=True)]
            tables = [list(b[:n]) for b, n in zip(plan.table_buffers, needed, strict=True)]
            assert ids.tolist() == sum(tables, [])
        found.append(ids is not None)
    assert 200 < sum(found) < 2800


def test_a_written_block_in_two_tables_is_noticed() -> None:
    written = np.zeros(20, np.bool_)
    written[[3, 7]] = True
    assert only_writers_read(np.array([1, 3, 1, 7], np.int32), [3, 7], written)
    assert not only_writers_read(np.array([3, 3, 7], np.int32), [3, 7], written)
