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

Ints = npt.NDArray[np.int64]


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
    sampled: list[int]
    """Indexes in the plan's `sampled`, those that failed left out; at least one."""


def sample_rows(
    plan: StepPlan, failed: Collection[SequenceId], batch: InputBatch
) -> Iterator[SampleRow]:
    """The chunks of the batch from which somebody samples, in order."""
    ends = dict(zip(batch.chunks, batch.first_rows[1:], strict=True))
    first = 0
    for chunk, count in enumerate(plan.num_samples):
        sampled = range(first, first + count)
        first += count
        wanted = [i for i in sampled if plan.sampled[i].sequence_id not in failed]
        if chunk in ends and wanted:
            yield SampleRow(chunk, ends[chunk] - 1, wanted)


def build_batch(
    plan: StepPlan,
    chunks: Sequence[int],
    pending: Mapping[SequenceId, int],
    block_size: int,
) -> InputBatch:
    """Lays out the named chunks. `pending`: token sampled for a sequence in the last step."""
    starts = np.array([plan.starts[i] for i in chunks], np.int64)
    lengths = np.array([plan.lengths[i] for i in chunks], np.int64)
    firsts = np.concatenate(([0], np.cumsum(lengths)))
    positions = np.repeat(starts - firsts[:-1], lengths) + np.arange(firsts[-1])
    tables = _block_tables(plan, chunks, (starts + lengths + block_size - 1) // block_size)
    rows = np.repeat(np.arange(len(chunks)), lengths)
    slots = tables[rows, positions // block_size].astype(np.int64) * block_size
    layout = StepLayout(
        starts=torch.from_numpy(starts.astype(np.int32)),
        lengths=torch.from_numpy(lengths.astype(np.int32)),
        block_tables=torch.from_numpy(tables),
        slot_mapping=torch.from_numpy(slots + positions % block_size),
    )
    return InputBatch(
        chunks=list(chunks),
        token_ids=torch.from_numpy(_token_ids(plan, chunks, firsts, pending)),
        positions=torch.from_numpy(positions),
        layout=layout,
        first_rows=firsts.tolist(),
    )


def _token_ids(
    plan: StepPlan, chunks: Sequence[int], firsts: Ints, pending: Mapping[SequenceId, int]
) -> Ints:
    token_ids = np.empty(firsts[-1], np.int64)
    for row, chunk in enumerate(chunks):
        start = plan.starts[chunk]
        known = min(plan.token_lengths[chunk] - start, plan.lengths[chunk])
        if known > 0:
            # A slice, as a buffer that numpy looks at cannot grow, and it does on another thread.
            tokens = plan.token_buffers[chunk][start : start + known]
            token_ids[firsts[row] : firsts[row] + known] = tokens
        else:
            token_ids[firsts[row]] = pending[plan.sequences[chunk].sequence_id]
    return token_ids


def _block_tables(plan: StepPlan, chunks: Sequence[int], widths: Ints) -> npt.NDArray[np.int32]:
    tables = np.zeros((len(chunks), int(widths.max())), np.int32)
    for row, chunk in enumerate(chunks):
        width = int(widths[row])
        tables[row, :width] = plan.table_buffers[chunk][:width]
    return tables
