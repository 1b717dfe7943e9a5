"""One step of attention over a paged pool, with its answer in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from executor_service.kernels import reference
from executor_service.kernels.backend import Backend, KVShape, KVStorage, StepLayout
from executor_service.kernels.launch_config import AttentionShape

LAYER = 1
NUM_LAYERS = 2

TOLERANCES = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedCase:
    """Chunks (start, length) of sequences whose earlier tokens are in the pool already.

    Blocks are taken in random order, and slots that no sequence holds are NaN.
    """

    chunks: Sequence[tuple[int, int]]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    max_context: int = 512
    seed: int = 0
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "generator", torch.Generator().manual_seed(self.seed))

    @property
    def attention_shape(self) -> AttentionShape:
        return AttentionShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_context=self.max_context,
        )

    @property
    def ends(self) -> list[int]:
        return [start + length for start, length in self.chunks]

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(
            num_layers=NUM_LAYERS,
            num_blocks=sum(-(-end // self.block_size) for end in self.ends) + 3,
            block_size=self.block_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedStep:
    """The case's tensors in one dtype."""

    layout: StepLayout
    scale: float
    pool: Tensor
    """Logical, float64, NaN where nothing is written; the step's own K and V are in it."""
    q: Tensor
    k: Tensor
    v: Tensor
    """On the host, views of one tensor as a model's projection gives them."""


def make_step(case: PagedCase, dtype: torch.dtype) -> PagedStep:
    shape = case.kv_shape
    blocks = torch.randperm(shape.num_blocks, generator=case.generator).int()
    widths = [-(-end // case.block_size) for end in case.ends]
    tables = torch.zeros(len(widths), max(widths), dtype=torch.int32)
    for row, mine in enumerate(blocks[: sum(widths)].split(widths)):
        tables[row, : widths[row]] = mine
    pool = torch.full(
        (NUM_LAYERS, 2, shape.num_blocks, case.block_size, case.num_kv_heads, case.head_dim),
        float("nan"),
        dtype=torch.float64,
    )
    for row, end in enumerate(case.ends):
        kv = _random(case, (2, end, case.num_kv_heads, case.head_dim), dtype).double()
        slots = _slots(tables[row], 0, end, case.block_size)
        reference.write_kv(pool, LAYER, kv[0], kv[1], slots)
    slots = torch.cat(
        [
            _slots(table, start, length, case.block_size)
            for table, (start, length) in zip(tables, case.chunks, strict=True)
        ]
    )
    heads = [case.num_heads, case.num_kv_heads, case.num_kv_heads]
    q, k, v = _random(case, (len(slots), sum(heads), case.head_dim), dtype).split(heads, dim=1)
    reference.write_kv(pool, LAYER, k.double(), v.double(), slots)
    starts, lengths = torch.tensor(list(case.chunks), dtype=torch.int32).unbind(1)
    layout = StepLayout(
        starts=starts.contiguous(),
        lengths=lengths.contiguous(),
        block_tables=tables,
        slot_mapping=slots,
    )
    return PagedStep(layout=layout, scale=case.head_dim**-0.5, pool=pool, q=q, k=k, v=v)


def fill_pool(backend: Backend, kv: KVStorage, pool: Tensor) -> None:
    """Puts the logical pool into a backend's own layout, block by block, through its own calls."""
    slots = torch.arange(pool.shape[2] * pool.shape[3])
    layout = StepLayout(
        starts=torch.zeros(1, dtype=torch.int32),
        lengths=torch.tensor([len(slots)], dtype=torch.int32),
        block_tables=torch.arange(pool.shape[2], dtype=torch.int32).unsqueeze(0),
        slot_mapping=slots,
    )
    step = backend.begin_step(layout, kv)
    for layer in range(pool.shape[0]):
        k, v = pool[layer].flatten(1, 2).to(backend.device, backend.dtype).unbind(0)
        backend.write_kv(kv, layer, k, v, step)


def expected(step: PagedStep) -> Tensor:
    """The rows of the step, float64."""
    layout = step.layout
    return reference.attention(
        step.q.double(),
        step.pool,
        LAYER,
        step.scale,
        layout.starts,
        layout.lengths,
        layout.block_tables,
    )


def _slots(table: Tensor, start: int, length: int, block_size: int) -> Tensor:
    positions = torch.arange(start, start + length)
    return table.long()[positions // block_size] * block_size + positions % block_size


def _random(case: PagedCase, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=case.generator).to(dtype)
