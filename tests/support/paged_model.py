"""Runs a LlamaModel on whole sequences or in pieces, with tables in shuffled order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from executor_service.kernels.backend import Backend, KVShape
from executor_service.kernels.cpu import CpuBackend
from executor_service.memory.kv_pool import KVPool
from executor_service.models.checkpoint import Checkpoint, open_checkpoint
from executor_service.models.llama import LlamaModel
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
        shape = KVShape(
            num_layers=config.num_layers,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
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
        hidden = self.model.forward(token_ids, positions, layout, self.pool.storage)
        return list(self.model.logits(hidden).split([length for _, length in spans]))

    def whole(self, token_ids: Sequence[int]) -> Tensor:
        return self.step([(0, 0, token_ids)])[0]


def load(path: Path, *, num_sequences: int = 1, max_len: int = 512) -> PagedModel:
    return PagedModel(
        open_checkpoint(path), CpuBackend(), num_sequences=num_sequences, max_len=max_len
    )
