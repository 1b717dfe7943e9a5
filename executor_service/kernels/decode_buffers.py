"""Fixed memory for steps of single tokens, which a captured graph reads again and again.

A graph replays the same launches on the same addresses. So the columns of a step are copied into
buffers made once, and rows that the step does not fill are sequences of one token in the spare
block of the pool: the kernels need not know of them.
"""

from __future__ import annotations

import numpy as np
import torch

from executor_service.kernels import cuda_kv
from executor_service.kernels.backend import StepLayout
from executor_service.kernels.cuda_kv import CudaKV
from executor_service.kernels.cuda_step import ChunkColumns, CudaStep, DecodeRows
from executor_service.kernels.launch_config import AttentionConfig
from executor_service.kernels.transfers import Upload

_ENOUGH_PROGRAMS = 1024
"""Several for each multiprocessor of the largest chips."""


class DecodeBuffers:
    """The step of up to `num_rows` chunks of one token."""

    def __init__(self, num_rows: int, kv: CudaKV, config: AttentionConfig, upload: Upload) -> None:
        self.num_rows = num_rows
        self._upload = upload
        self._spare_block = cuda_kv.spare_block(kv)
        self._spare_slot = self._spare_block * cuda_kv.block_size(kv)
        self._width = -(-config.shape.max_context // cuda_kv.block_size(kv))
        """Blocks of a table that may hold what an earlier step left."""
        device = kv.codes.device
        rows = torch.arange(num_rows, dtype=torch.int32, device=device)
        tables = torch.zeros(num_rows, self._width, dtype=torch.int32, device=device)
        tables[:, 0] = self._spare_block
        self.step = CudaStep(
            slots=torch.full((num_rows,), self._spare_slot, dtype=torch.int64, device=device),
            chunks=ChunkColumns(
                first_rows=rows,
                starts=torch.zeros_like(rows),
                lengths=torch.ones_like(rows),
                tables=tables,
            ),
            decodes=DecodeRows(chunks=rows, num_programs=_num_programs(num_rows, config)),
            tiles=None,
        )
        """What a graph is captured over."""

    def fill(self, layout: StepLayout) -> None:
        """Sets the columns of a step of at most `num_rows` chunks, all of one token."""
        count, width = layout.block_tables.shape
        starts = np.zeros(self.num_rows, np.int32)
        starts[:count] = layout.starts.numpy()
        tables = np.zeros((self.num_rows, width), np.int32)
        tables[:count] = layout.block_tables.numpy()
        tables[count:, 0] = self._spare_block
        slots = np.full(self.num_rows, self._spare_slot, np.int64)
        slots[:count] = layout.slot_mapping.numpy()
        sent = self._upload([starts, tables, slots])
        chunks = self.step.chunks
        chunks.starts.copy_(sent[0])
        chunks.tables[:, :width].copy_(sent[1])
        if self._width > width:
            chunks.tables[:, width : self._width] = 0
        self._width = width
        self.step.slots.copy_(sent[2])


def _num_programs(num_rows: int, config: AttentionConfig) -> int:
    """How many share a context of any length, which a captured launch cannot know."""
    wanted = _ENOUGH_PROGRAMS // (num_rows * config.shape.num_kv_heads)
    return max(1, min(config.max_splits, wanted))
