"""Fixed memory for steps of single tokens, which a captured graph reads again and again.

A graph replays the same launches on the same addresses. So the columns of a step are copied into
buffers made once, and rows that the step does not fill are sequences of one token in the spare
block of the pool: the kernels need not know of them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from executor_service.kernels import cuda_kv
from executor_service.kernels.backend import StepLayout
from executor_service.kernels.cuda_step import (
    ChunkColumns,
    CudaStep,
    DecodeRows,
    pack,
    to_device,
    unpack,
)
from executor_service.kernels.launch_config import AttentionConfig


_ENOUGH_PROGRAMS = 1024
"""Several for each multiprocessor of the largest chips."""


class DecodeBuffers:
    """The step of up to `num_rows` chunks of one token."""

    def __init__(self, num_rows: int, kv: Tensor, config: AttentionConfig) -> None:
        self.num_rows = num_rows
        self._spare_block = cuda_kv.spare_block(kv)
        self._block_size = cuda_kv.block_size(kv)
        self._max_blocks = -(-config.shape.max_context // self._block_size)
        sizes = [num_rows] * 3 + [num_rows * self._max_blocks]
        self._packed = torch.from_numpy(pack([np.zeros(size, np.int32) for size in sizes]))
        self._packed = self._packed.to(kv.device)
        rows, starts, lengths, tables = unpack(self._packed, sizes)
        self.step = CudaStep(
            slots=torch.zeros(num_rows, dtype=torch.int64, device=kv.device),
            chunks=ChunkColumns(
                first_rows=rows,
                starts=starts,
                lengths=lengths,
                tables=tables.view(num_rows, self._max_blocks),
            ),
            decodes=DecodeRows(chunks=rows, num_programs=_num_programs(num_rows, config)),
            tiles=None,
        )
        """Views of the buffers: what a graph is captured over."""

    def fill(self, layout: StepLayout) -> None:
        """Sets the columns of a step of at most `num_rows` chunks, all of one token."""
        count, width = layout.block_tables.shape
        rows = np.arange(self.num_rows, dtype=np.int32)
        starts = np.zeros(self.num_rows, np.int32)
        starts[:count] = layout.starts.numpy()
        lengths = np.ones(self.num_rows, np.int32)
        tables = np.zeros((self.num_rows, self._max_blocks), np.int32)
        tables[:count, :width] = layout.block_tables.numpy()
        tables[count:, 0] = self._spare_block
        slots = np.full(self.num_rows, self._spare_block * self._block_size, np.int64)
        slots[:count] = layout.slot_mapping.numpy()
        device = self._packed.device
        packed = pack([rows, starts, lengths, tables.ravel()])
        self._packed.copy_(to_device(packed, device), non_blocking=True)
        self.step.slots.copy_(to_device(slots, device), non_blocking=True)


def _num_programs(num_rows: int, config: AttentionConfig) -> int:
    """How many share a context of any length, which a captured launch cannot know."""
    wanted = _ENOUGH_PROGRAMS // (num_rows * config.shape.num_kv_heads)
    return max(1, min(config.max_splits, wanted))
