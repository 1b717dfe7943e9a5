"""Sequences that begin with the same blocks: attended to together, with the bits of each alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from executor_service.kernels.backend import KVShape, KVStorage
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.kv import KV_DTYPES
from executor_service.kernels.native.library import Library
from tests.support.paged import LAYER, make_layout

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 6, 2, 32

Sharer = tuple[int, int]
"""How many positions are those of the prefix, and where the one token of this step is."""

CROWDS: dict[str, list[Sharer]] = {
    "two": [(256, 300), (256, 256)],
    "a little more than a tile holds": [(256, 300 + i) for i in range(6)],
    "more than a unit holds": [(384, 384 + i) for i in range(40)],
    "of several lengths": [(512, 600), (512, 513), (128, 700), (128, 130), (384, 500), (512, 512)],
    "one that shares too little": [(512, 600), (512, 601), (512, 602), (128, 400), (112, 300)],
    "one within the prefix": [(512, 600), (300, 299), (512, 590)],
    "the whole context": [(512, 512), (512, 512), (512, 512)],
    "alone": [(512, 600)],
}


class Pool:
    """A prefix of 512 positions, and blocks of their own for whoever reads on."""

    def __init__(self, native: Library, dtype: torch.dtype, block_size: int) -> None:
        self.backend = NativeBackend(native, num_threads=2, kv_dtype=dtype)
        self.block_size = block_size
        self.num_blocks = 60_000 // block_size
        shape = KVShape(
            num_layers=2,
            num_blocks=self.num_blocks,
            block_size=block_size,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
        )
        self.kv: KVStorage = self.backend.allocate_kv(shape)
        self.backend.fill_blocks(self.kv, torch.arange(self.num_blocks), float("nan"))
        self._free = torch.randperm(self.num_blocks).int().tolist()
        self._prefix = self._take(-(-512 // block_size))
        self._write(self._prefix, 0, 512)

    def table(self, shared: int, position: int) -> list[int]:
        """Of a sequence whose K and V are written up to `position`, that included."""
        blocks = self._prefix[: shared // self.block_size]
        start = len(blocks) * self.block_size
        own = self._take(-(-(position + 1 - start) // self.block_size))
        self._write(blocks + own, start, position + 1)
        return blocks + own

    def attend(
        self, q: Tensor, chunks: Sequence[tuple[int, int]], tables: Sequence[list[int]]
    ) -> Tensor:
        width = max(map(len, tables))
        padded = torch.tensor([table + [0] * (width - len(table)) for table in tables]).int()
        step = self.backend.begin_step(make_layout(chunks, padded, self.block_size), self.kv)
        return self.backend.attention(q, self.kv, LAYER, 0.2, step)

    def _take(self, count: int) -> list[int]:
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _write(self, blocks: list[int], start: int, end: int) -> None:
        if start >= end:
            return
        layout = make_layout([(start, end - start)], torch.tensor([blocks]).int(), self.block_size)
        k, v = (torch.randn(end - start, NUM_KV_HEADS, HEAD_DIM) for _ in range(2))
        step = self.backend.begin_step(layout, self.kv)
        self.backend.write_kv(self.kv, LAYER, k, v, step)


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS.keys())
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_each_of_a_crowd_has_the_bits_it_has_alone(
    native: Library, dtype: torch.dtype, crowd: list[Sharer]
) -> None:
    _check(native, dtype, 16, crowd)


@pytest.mark.parametrize("block_size", [4, 48, 128])
def test_blocks_of_any_size_are_shared(native: Library, block_size: int) -> None:
    for name in ("of several lengths", "one that shares too little"):
        _check(native, torch.bfloat16, block_size, CROWDS[name])


def test_two_prefixes_and_a_prompt_in_one_step(native: Library) -> None:
    pools = Pool(native, torch.bfloat16, 16)
    shared = [pools.table(512, position) for position in (512, 700, 640)]
    other = pools.table(0, 400)
    tables = [shared[0], other[:20] + pools.table(0, 100)[:6], shared[1], other, shared[2]]
    chunks = [(512, 1), (390, 1), (650, 51), (400, 1), (640, 1)]
    _check_chunks(pools, chunks, tables)


def _check(native: Library, dtype: torch.dtype, block_size: int, crowd: list[Sharer]) -> None:
    pool = Pool(native, dtype, block_size)
    tables = [pool.table(shared, position) for shared, position in crowd]
    _check_chunks(pool, [(position, 1) for _, position in crowd], tables)


def _check_chunks(
    pool: Pool, chunks: Sequence[tuple[int, int]], tables: Sequence[list[int]]
) -> None:
    lengths = [length for _, length in chunks]
    q = torch.randn(sum(lengths), NUM_HEADS, HEAD_DIM)
    alone = [
        pool.attend(rows, [chunk], [table])
        for rows, chunk, table in zip(q.split(lengths), chunks, tables, strict=True)
    ]
    assert all(rows.isfinite().all() for rows in alone)
    for num_threads in (1, 2, 3):
        pool.backend.num_threads = num_threads
        assert torch.equal(pool.attend(q, chunks, tables), torch.cat(alone)), num_threads
