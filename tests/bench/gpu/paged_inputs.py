"""Inputs of one layer's attention over a paged pool with shuffled tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from executor_service.kernels.backend import Angles, KVShape, StepLayout
from executor_service.kernels.cuda import CudaBackend, arch_of
from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import (
    AttentionConfig,
    AttentionShape,
    attention_config,
)
from tests.bench.gpu.card import Card
from tests.support.random_llama import LlamaShape

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedInputs:
    backend: CudaBackend
    kv: Any
    step: Any
    qk: Tensor
    """[num_tokens, num_heads + num_kv_heads, head_dim]"""
    v: Tensor
    """[num_tokens, num_kv_heads, head_dim]"""
    angles: Angles
    scale: float
    config: AttentionConfig
    """The backend's."""
    slot_bytes: int
    """Of K and V of one token in the pool, scales included."""

    @property
    def rotary_write_bytes(self) -> int:
        """That `rotary_write` reads and writes."""
        written = self.q.nbytes + len(self.qk) * self.slot_bytes
        return self.qk.nbytes + self.v.nbytes + sum(a.nbytes for a in self.angles) + written

    @property
    def q(self) -> Tensor:
        return self.qk[:, : -self.v.shape[1]]

    def attend(self) -> Tensor:
        return self.backend.attention(self.q, self.kv, 0, self.scale, self.step)

    def rotary_write(self) -> Tensor:
        return self.backend.rotary_write_kv(self.qk, self.v, self.angles, self.kv, 0, self.step)


def paged_inputs(
    card: Card,
    shape: LlamaShape,
    chunks: Sequence[tuple[int, int]],
    *,
    kind: KVKind | None = None,
    window: int | None = None,
) -> PagedInputs:
    """`chunks`: start and length of each. kind: of the pool; None is that of the card's dtype."""
    longest = max(start + length for start, length in chunks)
    attention = AttentionShape(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_context=longest,
        window=window,
    )
    arch = arch_of(card.device)
    backend = CudaBackend(card.device, card.dtype, attention, arch, kind)
    width = -(-longest // BLOCK_SIZE)
    kv: Any = backend.allocate_kv(
        KVShape(
            num_layers=1,
            num_blocks=width * len(chunks),
            block_size=BLOCK_SIZE,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
        )
    )
    layout = _layout(chunks, width)
    num_tokens = len(layout.slot_mapping)

    def heads(count: int) -> Tensor:
        size = (num_tokens, count, shape.head_dim)
        return torch.randn(size, device=card.device, dtype=card.dtype)

    return PagedInputs(
        backend=backend,
        kv=kv,
        step=backend.begin_step(layout, kv),
        qk=heads(shape.num_heads + shape.num_kv_heads),
        v=heads(shape.num_kv_heads),
        angles=Angles(*torch.randn(2, num_tokens, shape.head_dim // 2, device=card.device)),
        scale=shape.head_dim**-0.5,
        config=attention_config(attention, card.dtype, arch, backend.kv_kind),
        slot_bytes=kv.nbytes // ((width * len(chunks) + 1) * BLOCK_SIZE),
    )


def _layout(chunks: Sequence[tuple[int, int]], width: int) -> StepLayout:
    order = torch.randperm(width * len(chunks), generator=torch.Generator().manual_seed(0))
    tables = order.view(len(chunks), width).int()
    slots = []
    for row, (start, length) in enumerate(chunks):
        positions = torch.arange(start, start + length)
        blocks = tables[row, positions // BLOCK_SIZE].long()
        slots.append(blocks * BLOCK_SIZE + positions % BLOCK_SIZE)
    starts, lengths = torch.tensor(chunks, dtype=torch.int32).unbind(1)
    return StepLayout(
        starts=starts.contiguous(),
        lengths=lengths.contiguous(),
        block_tables=tables,
        slot_mapping=torch.cat(slots),
    )
