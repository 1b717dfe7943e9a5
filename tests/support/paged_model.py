"""Runs a LlamaModel on whole sequences or in pieces, with tables in shuffled order."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from common.plan import TOKEN_TYPECODE
from executor_service.kernels.backend import Backend, StepLayout
from executor_service.kernels.cpu import CpuBackend
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.structs import Limits
from executor_service.memory.kv_pool import KVPool
from executor_service.models.checkpoint import Checkpoint, open_checkpoint
from executor_service.models.llama import LlamaModel
from executor_service.runner.chunk_columns import ChunkColumns
from executor_service.runner.native_forward import NativeForward
from executor_service.runner.step_chunks import StepChunks
from tests.support.native_library import block_maxima, native_library
from tests.support.paged import make_layout

BLOCK_SIZE = 16


class PagedModel:
    """A model with a pool for a few sequences, each with a table of its own."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        *,
        num_sequences: int = 1,
        max_len: int = 512,
    ) -> None:
        config = checkpoint.config
        per_sequence = -(-max_len // BLOCK_SIZE)
        num_blocks = per_sequence * num_sequences
        shape = config.kv_shape(num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self.model = LlamaModel(
            backend, config, checkpoint.weights, max_len, lambda done, total, what: None
        )
        self.pool = KVPool(backend, shape)
        self.pool.poison(range(num_blocks))
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5))
        self.tables = order.view(num_sequences, per_sequence).int()

    @torch.inference_mode()
    def step(self, chunks: Sequence[tuple[int, int, Sequence[int]]]) -> list[Tensor]:
        """`chunks` are (sequence, start, tokens); logits of each, [len(tokens), vocab_size]."""
        spans = [(start, len(tokens)) for _, start, tokens in chunks]
        layout = make_layout(spans, self.tables[[row for row, _, _ in chunks]], BLOCK_SIZE)
        token_ids = torch.tensor([token for _, _, tokens in chunks for token in tokens])
        positions = torch.cat([torch.arange(start, start + n) for start, n in spans])
        logits = self.logits(token_ids, positions, layout)
        return list(logits.split([length for _, length in spans]))

    def logits(self, token_ids: Tensor, positions: Tensor, layout: StepLayout) -> Tensor:
        """[num_tokens, vocab_size]"""
        return self.model.logits(
            self.model.forward(token_ids, positions, layout, self.pool.storage)
        )

    def whole(self, token_ids: Sequence[int]) -> Tensor:
        return self.step([(0, 0, token_ids)])[0]


class NativePagedModel(PagedModel):
    """The same, each step as one native call."""

    def __init__(self, checkpoint: Checkpoint, backend: NativeBackend, **options: Any) -> None:
        super().__init__(checkpoint, backend, **options)
        limits = Limits(
            max_tokens=512,
            max_chunks=512,
            max_rows=512,
            max_context=len(self.model.cos),
            num_threads=backend.num_threads,
        )
        self._library = backend.library
        self._native = NativeForward(self.model, backend, self.pool, limits)

    def logits(self, token_ids: Tensor, positions: Tensor, layout: StepLayout) -> Tensor:
        # Nothing of a step before may show in this one.
        native = self._native.step
        for buffer in (native.hidden, native.logits, native.maxima):
            buffer.fill_(float("nan"))
        native.workspace.fill_(0xFF)
        num_tokens = len(token_ids)
        step = chunks_of(token_ids, layout)
        hidden, logits = self._native.forward(step, range(num_tokens))
        assert logits is not None
        assert logits.maxima is not None
        hidden, rows = hidden[:num_tokens], logits.rows[:num_tokens]
        assert torch.equal(self.model.logits(hidden), rows)
        maxima = block_maxima(self._library, rows)
        assert torch.equal(logits.maxima[:num_tokens].nan_to_num(7e37), maxima.nan_to_num(7e37))
        return rows.clone()


def chunks_of(token_ids: Tensor, layout: StepLayout) -> StepChunks:
    """All tokens known. Plan indexes mean nothing."""

    def ints(values: Iterable[int]) -> array[int]:
        return array(TOKEN_TYPECODE, values)

    starts, lengths = ints(layout.starts.tolist()), ints(layout.lengths.tolist())
    ends = list(map(add, starts, lengths))
    num_blocks = [-(-end // BLOCK_SIZE) for end in ends]
    tables = zip(layout.block_tables.tolist(), num_blocks, strict=True)
    columns = ChunkColumns(
        starts=starts,
        lengths=lengths,
        ends=ends,
        num_tokens=lengths.tolist(),
        num_blocks=num_blocks,
        tokens=ints(token_ids.tolist()),
        blocks=ints(block for table, count in tables for block in table[:count]),
    )
    return StepChunks(
        chunks=list(range(len(starts))),
        columns=columns,
        token_ids=columns.tokens,
        first_rows=list(accumulate(lengths, initial=0)),
    )


class Load(Protocol):
    def __call__(self, path: Path, *, num_sequences: int = 1, max_len: int = 512) -> PagedModel: ...


def load(path: Path, *, num_sequences: int = 1, max_len: int = 512) -> PagedModel:
    return PagedModel(
        open_checkpoint(path), CpuBackend(), num_sequences=num_sequences, max_len=max_len
    )


def load_native(
    path: Path, *, num_sequences: int = 1, max_len: int = 512, num_threads: int = 2
) -> PagedModel:
    return NativePagedModel(
        open_checkpoint(path),
        NativeBackend(native_library(), num_threads=num_threads),
        num_sequences=num_sequences,
        max_len=max_len,
    )


def load_native_operations(path: Path, *, num_sequences: int = 1, max_len: int = 512) -> PagedModel:
    return PagedModel(
        open_checkpoint(path),
        NativeBackend(native_library(), num_threads=2),
        num_sequences=num_sequences,
        max_len=max_len,
    )


WAYS: dict[str, Load] = {
    "torch": load,
    "native": load_native,
    "native operations": load_native_operations,
}
"""Each way to run a model on the host."""
