from __future__ import annotations

from array import array

import torch

from common.plan import SequenceId, StepPlan
from executor_service.runner.batch import InputBatch, build_batch
from executor_service.runner.chunk_columns import read_chunks
from executor_service.runner.step_chunks import step_chunks
from executor_service.runner.validate import CheckedPlan
from tests.support.plans import add_chunk, make_spec


def plan() -> StepPlan:
    """A decode, a piece of a prompt, and a decode whose input is pending."""
    result = StepPlan(step_id=1)
    add_chunk(result, make_spec(1, 4), [10, 11, 12, 13, 14], [7, 3], start=4, length=1)
    add_chunk(result, make_spec(2, 9), range(20, 29), [5, 0, 2], start=3, length=4)
    add_chunk(result, make_spec(3, 2), [30, 31], [9], start=2, length=1)
    return result


def batch_of(
    plan: StepPlan, chunks: list[int], pending: dict[SequenceId, int] | None = None
) -> InputBatch:
    columns = read_chunks(plan, chunks, 4)
    checked = CheckedPlan(chunks=chunks, columns=columns, copies=[], errors={})
    return build_batch(step_chunks(plan, checked, pending or {}), 4)


def test_columns_become_tensors_in_chunk_order() -> None:
    batch = batch_of(plan(), [0, 1, 2], {SequenceId(3): 99})
    assert batch.token_ids.tolist() == [14, 23, 24, 25, 26, 99]
    assert batch.positions.tolist() == [4, 3, 4, 5, 6, 2]
    assert batch.first_rows == [0, 1, 5, 6]
    layout = batch.layout
    assert layout.slot_mapping.tolist() == [3 * 4, 5 * 4 + 3, 0, 1, 2, 9 * 4 + 2]
    assert layout.starts.tolist() == [4, 3, 2]
    assert layout.lengths.tolist() == [1, 4, 1]
    assert layout.block_tables.tolist() == [[7, 3], [5, 0], [9, 0]]
    assert layout.starts.dtype == layout.block_tables.dtype == torch.int32
    assert layout.slot_mapping.dtype == batch.token_ids.dtype == torch.int64


def test_chunks_left_out_leave_no_trace() -> None:
    batch = batch_of(plan(), [1])
    assert batch.chunks == [1]
    assert batch.token_ids.tolist() == [23, 24, 25, 26]
    assert batch.layout.block_tables.tolist() == [[5, 0]]


def test_buffers_may_grow_while_and_after_a_batch_is_built() -> None:
    """The thread that decodes the next plan appends to the very buffers of this one."""
    given = plan()
    batch = batch_of(given, [0, 1])
    for buffer in (*given.token_buffers, *given.table_buffers):
        buffer.extend(array("i", [1] * 1000))
    assert batch.token_ids.tolist() == [14, 23, 24, 25, 26]


def test_only_the_stated_length_of_a_buffer_counts() -> None:
    given = plan()
    given.token_buffers[2].append(77)
    batch = batch_of(given, [2], {SequenceId(3): 99})
    assert batch.token_ids.tolist() == [99]


def test_decodes_alone_are_laid_out_like_any_chunks() -> None:
    """They take shorter ways: every chunk one token, all known or all pending."""
    given = StepPlan(step_id=1)
    for i in range(3):
        add_chunk(given, make_spec(i, 2), [i] * 6, [i, 10 + i], start=5, length=1)
    pending = {SequenceId(i): 50 + i for i in range(3)}
    known = batch_of(given, [0, 1, 2], pending)
    assert known.token_ids.tolist() == [0, 1, 2]
    assert known.positions.tolist() == [5, 5, 5]
    assert known.first_rows == [0, 1, 2, 3]
    assert known.layout.slot_mapping.tolist() == [41, 45, 49]
    for i in range(3):
        given.token_lengths[i] = 5
    waiting = batch_of(given, [0, 1, 2], pending)
    assert waiting.token_ids.tolist() == [50, 51, 52]
    assert waiting.layout.slot_mapping.tolist() == [41, 45, 49]
