"""Fixed memory for steps of single tokens, which a captured graph reads again and again.

A graph replays the same launches on the same addresses. So the columns of a step are copied into
buffers made once, and rows that the step does not fill are sequences of one token in the spare
block of the pool: the kernels need not know of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from executor_service.kernels import cuda_kv
from executor_service.kernels.backend import StepLayout
from executor_service.kernels.cuda_kv import CudaKV
from executor_service.kernels.cuda_step import (
    ChunkColumns,
    CudaStep,
    DecodeRows,
    Ints,
    pack,
    to_device,
    unpack,
)
from executor_service.kernels.launch_config import AttentionConfig

_ENOUGH_PROGRAMS = 1024
"""Several for each multiprocessor of the largest chips."""


class DecodeBuffers:
    """The step of up to `num_rows` chunks of one token."""

    def __init__(self, num_rows: int, kv: CudaKV, config: AttentionConfig) -> None:
        self.num_rows = num_rows
        self._spare_block = cuda_kv.spare_block(kv)
        self._block_size = cuda_kv.block_size(kv)
        self._max_blocks = -(-config.shape.max_context // self._block_size)
        sizes = [num_rows] * 3 + [num_rows * self._max_blocks]
        self._packed = torch.from_numpy(pack([np.zeros(size, np.int32) for size in sizes]))
        self._packed = self._packed.to(kv.codes.device)
        rows, starts, lengths, tables = unpack(self._packed, sizes)
        self.step = CudaStep(
            slots=torch.zeros(num_rows, dtype=torch.int64, device=kv.codes.device),
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
        self._set(np.zeros(0, np.int32), np.zeros((0, 1), np.int32), np.zeros(0, np.int64))

    def fill(self, layout: StepLayout) -> None:
        """Sets the columns of a step of at most `num_rows` chunks, all of one token."""
        columns = layout.starts, layout.block_tables, layout.slot_mapping
        self._set(*(column.numpy() for column in columns))

    def _set(self, starts: Ints, tables: Ints, slots: npt.NDArray[np.int64]) -> None:
        """[count], [count, width] and [count]; rows behind them are tokens in the spare block."""
        count, width = tables.shape
        all_starts = np.zeros(self.num_rows, np.int32)
        all_starts[:count] = starts
        all_tables = np.zeros((self.num_rows, self._max_blocks), np.int32)
        all_tables[:count, :width] = tables
        all_tables[count:, 0] = self._spare_block
        all_slots = np.full(self.num_rows, self._spare_block * self._block_size, np.int64)
        all_slots[:count] = slots
        rows = np.arange(self.num_rows, dtype=np.int32)
        lengths = np.ones(self.num_rows, np.int32)
        packed = pack([rows, all_starts, lengths, all_tables.ravel()])
        device = self._packed.device
        self._packed.copy_(to_device(packed, device), non_blocking=True)
        self.step.slots.copy_(to_device(all_slots, device), non_blocking=True)


def _num_programs(num_rows: int, config: AttentionConfig) -> int:
    """How many share a context of any length, which a captured launch cannot know."""
    wanted = _ENOUGH_PROGRAMS // (num_rows * config.shape.num_kv_heads)
    return max(1, min(config.max_splits, wanted))
