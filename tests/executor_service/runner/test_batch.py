from __future__ import annotations

from array import array

import torch

from common.plan import SequenceId, StepPlan
from executor_service.runner.batch import build_batch
from tests.support.plans import add_chunk, make_spec


def plan() -> StepPlan:
    """A decode, a piece of a prompt, and a decode whose input is pending."""
    result = StepPlan(step_id=1)
    add_chunk(result, make_spec(1, 4), [10, 11, 12, 13, 14], [7, 3], start=4, length=1)
    add_chunk(result, make_spec(2, 9), range(20, 29), [5, 0, 2], start=3, length=4)
    add_chunk(result, make_spec(3, 2), [30, 31], [9], start=2, length=1)
    return result


def test_columns_become_tensors_in_chunk_order() -> None:
    batch = build_batch(plan(), [0, 1, 2], {SequenceId(3): 99}, block_size=4)
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
    batch = build_batch(plan(), [1], {}, block_size=4)
    assert batch.chunks == [1]
    assert batch.token_ids.tolist() == [23, 24, 25, 26]
    assert batch.layout.block_tables.tolist() == [[5, 0]]


def test_buffers_may_grow_while_and_after_a_batch_is_built() -> None:
    """The thread that decodes the next plan appends to the very buffers of this one."""
    given = plan()
    batch = build_batch(given, [0, 1], {}, block_size=4)
    for buffer in (*given.token_buffers, *given.table_buffers):
        buffer.extend(array("i", [1] * 1000))
    assert batch.token_ids.tolist() == [14, 23, 24, 25, 26]


def test_only_the_stated_length_of_a_buffer_counts() -> None:
    given = plan()
    given.token_buffers[2].append(77)
    batch = build_batch(given, [2], {SequenceId(3): 99}, block_size=4)
    assert batch.token_ids.tolist() == [99]
