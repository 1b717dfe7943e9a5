"""Chunks over a paged pool with shuffled tables, and the same pool in logical shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from executor_service.kernels import reference
from executor_service.kernels.backend import Angles, Backend, KVShape, KVStorage, StepLayout

NUM_LAYERS = 2
LAYER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedCase:
    """Inputs of one attention call; every block that no table names is full of NaN."""

    kv: KVStorage
    pool: Tensor
    """The same pool in logical shape and float64."""
    layout: StepLayout
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float

    def run(self, backend: Backend) -> Tensor:
        step = backend.begin_step(self.layout, self.kv)
        write(backend, self.kv, LAYER, self.k, self.v, step)
        return backend.attention(self.q, self.kv, LAYER, self.scale, step)

    def expected(
        self,
        kept: Callable[[Tensor], Tensor] = Tensor.double,
        *,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """`kept` gives what the pool holds of new keys and values."""
        slots = self.layout.slot_mapping
        q, k, v = self.q.double().cpu(), kept(self.k.cpu()).double(), kept(self.v.cpu()).double()
        reference.write_kv(self.pool, LAYER, k, v, slots)
        return reference.attention(
            q,
            self.pool,
            LAYER,
            self.scale,
            self.layout.starts,
            self.layout.lengths,
            self.layout.block_tables,
            window,
            soft_cap,
        )


def write(backend: Backend, kv: KVStorage, layer: int, k: Tensor, v: Tensor, step: Any) -> None:
    """Keys and values as they are: turned by no angle."""
    half = torch.ones(k.shape[0], k.shape[2] // 2, device=k.device)
    backend.rotary_write_kv(k, v, Angles(half, half * 0), kv, layer, step)


def make_case(
    backend: Backend,
    chunks: Sequence[tuple[int, int]],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    seed: int,
) -> PagedCase:
    """`chunks` are (start, length). Slots behind a chunk's end hold NaN in its own last block."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-(start + length) // block_size) for start, length in chunks]
    num_blocks = sum(needed) + 3
    shape = KVShape(
        num_layers=NUM_LAYERS,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )
    kv = backend.allocate_kv(shape)
    backend.fill_blocks(kv, torch.arange(num_blocks), float("nan"))
    order = torch.randperm(num_blocks, generator=generator)
    tables = torch.zeros(len(chunks), max(needed), dtype=torch.int32)
    for row, count in enumerate(needed):
        tables[row, :count] = order[:count]
        order = order[count:]
    for row, (start, _) in enumerate(chunks):
        _fill_history(backend, kv, shape, tables[row], start, generator)
    num_tokens = sum(length for _, length in chunks)
    # Views of one tensor, as a model's projection gives them.
    heads = [num_heads, num_kv_heads, num_kv_heads]
    rows = torch.randn(num_tokens, sum(heads), head_dim, generator=generator)
    q, k, v = rows.to(backend.device, backend.dtype).split(heads, dim=1)
    return PagedCase(
        kv=kv,
        pool=backend.read_blocks(kv, torch.arange(num_blocks)).double().cpu(),
        layout=make_layout(chunks, tables, block_size),
        q=q,
        k=k,
        v=v,
        scale=head_dim**-0.5,
    )


def make_layout(chunks: Sequence[tuple[int, int]], tables: Tensor, block_size: int) -> StepLayout:
    slots = [
        int(tables[row, position // block_size]) * block_size + position % block_size
        for row, (start, length) in enumerate(chunks)
        for position in range(start, start + length)
    ]
    return StepLayout(
        starts=torch.tensor([start for start, _ in chunks], dtype=torch.int32),
        lengths=torch.tensor([length for _, length in chunks], dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.tensor(slots),
    )


def _fill_history(
    backend: Backend,
    kv: KVStorage,
    shape: KVShape,
    table: Tensor,
    start: int,
    generator: torch.Generator,
) -> None:
    """Random K and V for positions [0, start), written as a step would."""
    if not start:
        return
    layout = make_layout([(0, start)], table.unsqueeze(0), shape.block_size)
    step = backend.begin_step(layout, kv)
    for layer in range(shape.num_layers):
        k, v = (
            torch.randn(start, shape.num_kv_heads, shape.head_dim, generator=generator)
            for _ in range(2)
        )
        k, v = (x.to(backend.device, backend.dtype) for x in (k, v))
        write(backend, kv, layer, k, v, step)
