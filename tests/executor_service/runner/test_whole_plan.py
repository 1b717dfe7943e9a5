"""What is said of all chunks together is what is said of each."""

from __future__ import annotations

import random

import numpy as np

from common.plan import ErrorCode, SequenceId, StepPlan
from executor_service.runner.chunk_columns import ChunkColumns, read_chunks
from executor_service.runner.validate import LastSamples, PlanChecker
from executor_service.runner.whole_plan import only_writers_read
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


class OneByOne(PlanChecker):
    """Looks at each chunk of every plan."""

    def _are_sound(self, plan: StepPlan, columns: ChunkColumns, last: LastSamples) -> bool:
        return False


def test_a_plan_is_sound_if_each_chunk_is() -> None:
    choose, together, one_by_one = random.Random(2), PlanChecker(SPEC), OneByOne(SPEC)
    sound = 0
    for _ in range(5000):
        plan = random_plan(choose)
        last = LastSamples(
            tokens={SequenceId(i): 7 for i in range(5) if choose.random() < 0.8},
            failed={SequenceId(i): ErrorCode.NON_FINITE for i in range(5) if choose.random() < 0.1},
        )
        wanted, found = one_by_one.check(plan, last), together.check(plan, last)
        assert found.errors == wanted.errors
        assert found.chunks == wanted.chunks
        columns = read_chunks(plan, list(range(plan.num_chunks)), SPEC.block_size)
        if together._are_sound(plan, columns, last):
            sound += 1
            assert not wanted.errors
    assert 200 < sound < 4000


def test_columns_hold_what_the_chunks_name() -> None:
    plan = StepPlan(step_id=1)
    add_chunk(plan, make_spec(1, 20), range(100, 140), [4, 5, 6], start=16, length=20)
    add_chunk(plan, make_spec(2, 20), range(20), [7, 8], start=20, length=1)
    columns = read_chunks(plan, [0, 1], 16)
    assert columns.num_tokens == [20, 0]
    assert columns.tokens.tolist() == list(range(116, 136))
    assert columns.num_blocks == [3, 2]
    assert columns.blocks.tolist() == [4, 5, 6, 7, 8]
    assert read_chunks(plan, [1], 16).blocks.tolist() == [7, 8]


def columns_of(tables: list[list[int]], spans: list[tuple[int, int]]) -> ChunkColumns:
    plan = StepPlan(step_id=1)
    for i, (table, (start, length)) in enumerate(zip(tables, spans, strict=True)):
        add_chunk(plan, make_spec(i, 20), [0] * (start + length), table, start=start, length=length)
    return read_chunks(plan, list(range(len(tables))), 16)


def test_a_written_block_in_two_tables_is_noticed() -> None:
    written = np.zeros(20, np.bool_)

    def harmless(tables: list[list[int]], spans: list[tuple[int, int]]) -> bool:
        found = only_writers_read(columns_of(tables, spans), 16, written)
        assert not written.any()
        return found

    assert harmless([[1, 3], [1, 7]], [(16, 1), (20, 5)])
    assert harmless([[1, 3, 4], [1, 7]], [(16, 20), (20, 5)])
    assert not harmless([[1, 3], [3, 7]], [(16, 1), (20, 5)]), "the first one's is read"
    assert not harmless([[1, 3], [2, 3]], [(16, 1), (20, 5)]), "both write it"
    assert not harmless([[1, 3], [1, 7]], [(0, 17), (20, 5)]), "a block before the last is written"
