"""InputBatch: the chunks of a step as the model's input tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_service.kernels.backend import StepLayout
from executor_service.runner.chunk_columns import ChunkColumns
from executor_service.runner.step_chunks import StepChunks


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


def build_batch(step: StepChunks, block_size: int) -> InputBatch:
    starts, lengths = (np.array(c) for c in (step.columns.starts, step.columns.lengths))
    chunk_of = np.repeat(np.arange(len(starts)), lengths)
    before = np.array(step.first_rows[:-1], np.int64)
    positions = np.arange(len(chunk_of)) + (starts - before)[chunk_of]
    tables = _block_tables(step.columns)
    pages, offsets = np.divmod(positions, block_size)
    slots = tables[chunk_of, pages].astype(np.int64) * block_size + offsets
    layout = StepLayout(
        starts=torch.from_numpy(starts),
        lengths=torch.from_numpy(lengths),
        block_tables=torch.from_numpy(tables),
        slot_mapping=torch.from_numpy(slots),
    )
    return InputBatch(
        chunks=step.chunks,
        token_ids=torch.from_numpy(np.array(step.token_ids, np.int64)),
        positions=torch.from_numpy(positions),
        layout=layout,
        first_rows=step.first_rows,
    )


def _block_tables(columns: ChunkColumns) -> npt.NDArray[np.int32]:
    widths = np.array(columns.num_blocks)
    tables = np.zeros((len(widths), int(widths.max())), np.int32)
    tables[np.arange(tables.shape[1]) < widths[:, None]] = columns.blocks
    return tables
