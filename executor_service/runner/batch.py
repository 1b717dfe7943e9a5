"""InputBatch: the columns of a checked plan as the model's input tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.plan import SequenceId, StepPlan
from executor_service.kernels.backend import StepLayout
from executor_service.runner.chunk_columns import ChunkColumns, Ints, ranges
from executor_service.runner.validate import CheckedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """Inputs of one forward pass over the chunks that passed validation."""

    chunks: list[int]
    """Plan indexes, in order of the batch."""
    token_ids: Tensor
    """[num_tokens] int64"""
    positions: Tensor
    """[num_tokens] int64"""
    layout: StepLayout
    first_rows: list[int]
    """First token of each chunk within the batch; one more entry at the end."""


class SampleRow(NamedTuple):
    """A chunk that samples."""

    chunk: int
    """Plan index."""
    token: int
    """Row of the batch: the chunk's last."""
    sampled: Sequence[int]
    """Indexes in the plan's `sampled`, those that failed left out; at least one."""


def sample_rows(
    plan: StepPlan, failed: Collection[SequenceId], batch: InputBatch
) -> Iterator[SampleRow]:
    """The chunks of the batch from which somebody samples, in order."""
    ends = dict(zip(batch.chunks, batch.first_rows[1:], strict=True))
    first = 0
    for chunk, count in enumerate(plan.num_samples):
        wanted: Sequence[int] = range(first, first + count)
        first += count
        if failed:
            wanted = [i for i in wanted if plan.sampled[i].sequence_id not in failed]
        if wanted and chunk in ends:
            yield SampleRow(chunk, ends[chunk] - 1, wanted)


def build_batch(
    plan: StepPlan, checked: CheckedPlan, pending: Mapping[SequenceId, int], block_size: int
) -> InputBatch:
    """Lays out the chunks that can run. pending: the tokens that the step before sampled."""
    columns = checked.columns
    ends = np.cumsum(columns.lengths)
    positions = ranges(columns.starts, columns.lengths)
    tables = _block_tables(columns)
    pages, offsets = np.divmod(positions, block_size)
    chunk_of = np.repeat(np.arange(len(ends)), columns.lengths)
    slots = tables[chunk_of, pages].astype(np.int64) * block_size + offsets
    layout = StepLayout(
        starts=torch.from_numpy(columns.starts.astype(np.int32)),
        lengths=torch.from_numpy(columns.lengths.astype(np.int32)),
        block_tables=torch.from_numpy(tables),
        slot_mapping=torch.from_numpy(slots),
    )
    return InputBatch(
        chunks=checked.chunks,
        token_ids=torch.from_numpy(_token_ids(plan, checked, ends, pending)),
        positions=torch.from_numpy(positions),
        layout=layout,
        first_rows=[0, *ends.tolist()],
    )


def _token_ids(
    plan: StepPlan, checked: CheckedPlan, ends: Ints, pending: Mapping[SequenceId, int]
) -> Ints:
    """The known tokens, and between them those that were pending: they are chunks of their own."""
    columns = checked.columns
    if len(columns.tokens) == ends[-1]:
        return columns.tokens.astype(np.int64)
    is_known = columns.num_tokens > 0
    waiting = np.flatnonzero(~is_known)
    token_ids = np.empty(ends[-1], np.int64)
    token_ids[np.repeat(is_known, columns.lengths)] = columns.tokens
    token_ids[ends[waiting] - 1] = [
        pending[plan.sequences[checked.chunks[row]].sequence_id] for row in waiting.tolist()
    ]
    return token_ids


def _block_tables(columns: ChunkColumns) -> npt.NDArray[np.int32]:
    widths = columns.num_blocks
    if len(widths) == 1:
        return columns.blocks[None]
    tables = np.zeros((len(widths), int(widths.max())), np.int32)
    tables[np.arange(tables.shape[1]) < widths[:, None]] = columns.blocks
    return tables
