"""Whether a plan is sound, looked at as a whole. Of one that is not, `validate` says why."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from operator import le

import numpy as np
import numpy.typing as npt

from common.plan import StepPlan
from executor_service.runner.chunk_columns import ChunkColumns
from executor_service.runner.spec import ExecutorSpec

_FEW = 256
"""Entries that plain Python looks at as fast as numpy."""


def fits_executor(plan: StepPlan, chunks: ChunkColumns, spec: ExecutorSpec) -> bool:
    """Whether every chunk, and all of them together, keep to positions, blocks and tokens that
    there are. `chunks`: all of the plan."""
    return bool(
        plan.sequences
        and min(plan.starts) >= 0
        and min(plan.lengths) >= 1
        and max(chunks.ends) <= spec.max_model_len
        and plan.num_chunks <= spec.max_chunks
        and plan.num_tokens <= spec.max_num_batched_tokens
        and all(map(le, plan.token_lengths, map(len, plan.token_buffers)))
        and all(map(le, plan.table_lengths, map(len, plan.table_buffers)))
        and all(map(le, chunks.num_blocks, plan.table_lengths))
        and all_below(chunks.tokens, spec.vocab_size)
        and all_below(chunks.blocks, spec.num_blocks)
    )


def only_writers_read(
    chunks: ChunkColumns, block_size: int, is_written: npt.NDArray[np.bool_]
) -> bool:
    """Whether each block that a chunk writes stands once in all tables: in its writer's.

    Of chunks that fit the executor. is_written: [num_blocks], false and left so.
    """
    if len(chunks.starts) == 1:
        return True
    written: list[int] = []
    first = 0
    for start, count in zip(chunks.starts, chunks.num_blocks, strict=True):
        written += chunks.blocks[first + start // block_size : first + count]
        first += count
    if not are_distinct(written):
        return False
    is_written[written] = True
    num_read = np.count_nonzero(is_written[np.array(chunks.blocks)])
    is_written[written] = False
    return bool(num_read == len(written))


def are_distinct(keys: Sequence[Hashable]) -> bool:
    return len(set(keys)) == len(keys)


def all_below(ids: array[int], limit: int) -> bool:
    """Whether all are in [0, limit)."""
    if len(ids) <= _FEW:
        return not ids or (min(ids) >= 0 and max(ids) < limit)
    values = np.array(ids)
    return bool(values.min() >= 0 and values.max() < limit)
