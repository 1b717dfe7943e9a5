"""Attention of prompts and decodes: right, blind to foreign blocks, the same bits in company."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from executor_service.kernels import attention, cuda_kv
from executor_service.kernels.backend import KVShape
from executor_service.kernels.cuda import CudaBackend
from executor_service.kernels.kv_kind import KVKind
from tests.support.cuda_backends import TOLERANCES, make_backend
from tests.support.paged import LAYER, PagedCase, make_case, make_layout, write

HEADS = {
    "grouped by 3": (6, 2, 64),
    "ungrouped, heads of 80": (2, 2, 80),
    "heads of 96": (4, 2, 96),
    "one KV head, heads of 128": (8, 1, 128),
    "heads of 256": (2, 1, 256),
}
MIXES = {
    "single tokens": [(0, 1), (16, 1), (63, 1), (130, 1)],
    "chunks among them": [(20, 1), (0, 33), (31, 1), (40, 7), (62, 2)],
}


def case_of(
    backend: CudaBackend, chunks: list[tuple[int, int]], heads: tuple[int, int, int], seed: int = 0
) -> PagedCase:
    return make_case(
        backend,
        chunks,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        block_size=16,
        seed=seed,
    )


def backend_of(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int, int]
) -> CudaBackend:
    num_heads, num_kv_heads, head_dim = heads
    return make_backend(
        device, dtype, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
    )


def check(case: PagedCase, backend: CudaBackend) -> None:
    found = case.run(backend)
    assert found.isfinite().all(), "a slot that belongs to nobody was read, or a row left out"
    assert (found.double().cpu() - case.expected()).abs().max() < TOLERANCES[backend.dtype]


@pytest.mark.parametrize("mix", MIXES)
def test_equals_the_reference_over_shuffled_tables(
    mix: str, device: torch.device, dtype: torch.dtype
) -> None:
    heads = (3, 1, 64)
    backend = backend_of(device, dtype, heads)
    check(case_of(backend, MIXES[mix], heads), backend)


def test_a_mixed_step_in_half_precision_equals_the_reference(
    device: torch.device, half: torch.dtype
) -> None:
    heads = (4, 2, 64)
    backend = backend_of(device, half, heads)
    check(case_of(backend, [(20, 1), (0, 33), (270, 1), (40, 7)], heads, seed=10), backend)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_size_and_grouping_works(
    name: str, device: torch.device, dtype: torch.dtype
) -> None:
    heads = HEADS[name]
    backend = backend_of(device, dtype, heads)
    check(case_of(backend, [(34, 1), (10, 12)], heads, seed=1), backend)


@pytest.mark.parametrize("block_size", [1, 3, 32])
def test_any_block_size_works(block_size: int, device: torch.device) -> None:
    backend = make_backend(device, torch.float32)
    case = make_case(
        backend,
        [(5, 1), (12, 20)],
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        block_size=block_size,
        seed=2,
    )
    check(case, backend)


def test_contexts_of_several_splits_are_merged(device: torch.device, dtype: torch.dtype) -> None:
    """A split is 256 slots here: exactly one, one and a slot, two and some."""
    heads = (2, 1, 64)
    backend = backend_of(device, dtype, heads)
    check(case_of(backend, [(255, 1), (256, 1), (530, 1)], heads, seed=3), backend)


def test_the_number_of_programs_changes_no_bit(device: torch.device) -> None:
    heads = (2, 1, 64)
    backend = backend_of(device, torch.float32, heads)
    case = case_of(backend, [(520, 1), (3, 1)], heads, seed=4)
    expected = case.run(backend)
    step = backend.begin_step(case.layout, case.kv)
    assert step.decodes is not None
    assert step.decodes.num_programs == 3
    for count in (1, 5):
        decodes = dataclasses.replace(step.decodes, num_programs=count)
        changed = dataclasses.replace(step, decodes=decodes)
        found = backend.attention(case.q, case.kv, LAYER, case.scale, changed)
        assert torch.equal(found, expected), count


def rows_of(case: PagedCase, backend: CudaBackend, chunks: list[tuple[int, int]]) -> Tensor:
    """Attention of the case's one sequence in other chunks; its K and V are in the pool."""
    outputs = []
    for start, length in chunks:
        layout = make_layout([(start, length)], case.layout.block_tables, 16)
        step = backend.begin_step(layout, case.kv)
        q = case.q[start : start + length]
        outputs.append(backend.attention(q, case.kv, LAYER, case.scale, step))
    return torch.cat(outputs)


def equal(found: Tensor, expected: Tensor) -> bool:
    """Bit by bit on a GPU. The interpreter multiplies by a library whose sum for a row depends on
    where in a tile the row stands, so there the last bits may differ."""
    if found.device.type == "cuda":
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=0, atol=TOLERANCES[found.dtype] / 4)


def test_cutting_a_prompt_changes_no_bit(device: torch.device, dtype: torch.dtype) -> None:
    heads = (2, 1, 64)
    backend = backend_of(device, dtype, heads)
    case = case_of(backend, [(0, 90)], heads, seed=5)
    whole = case.run(backend)
    assert equal(rows_of(case, backend, [(0, 47), (47, 2), (49, 41)]), whole)


def test_neighbours_change_no_bit(device: torch.device, dtype: torch.dtype) -> None:
    heads = (2, 1, 64)
    chunks = [(260, 1), (17, 9), (2, 1)]
    backend = backend_of(device, dtype, heads)
    case = case_of(backend, chunks, heads, seed=6)
    together = case.run(backend)
    first = 0
    for row, (start, length) in enumerate(chunks):
        layout = make_layout([(start, length)], case.layout.block_tables[row : row + 1], 16)
        step = backend.begin_step(layout, case.kv)
        q = case.q[first : first + length]
        alone = backend.attention(q, case.kv, LAYER, case.scale, step)
        assert equal(alone, together[first : first + length]), row
        first += length


STEPS = {
    "decodes": [(20, 1), (300, 1)],
    "prompts": [(0, 9), (40, 45)],
    "mixed": [(300, 1), (0, 9), (20, 1), (40, 45)],
}


@pytest.mark.parametrize("work", STEPS)
def test_a_step_of_any_work_is_one_launch(
    work: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = (2, 1, 64)
    backend = backend_of(device, torch.float32, heads)
    case = case_of(backend, STEPS[work], heads, seed=8)
    launched = []
    kernel = attention.attention_kernel

    class Noted:
        def __getitem__(self, grid: tuple[int]) -> Any:
            launched.append(grid)
            return kernel[grid]

    monkeypatch.setattr(attention, "attention_kernel", Noted())
    check(case, backend)
    step = backend.begin_step(case.layout, case.kv)
    num_tiles = 0 if step.tiles is None else len(step.tiles.chunks)
    num_shares = 0 if step.decodes is None else len(step.decodes.chunks) * 2
    assert launched == [(num_tiles + num_shares,)]
    assert (num_tiles > 2) == (work != "decodes")
    assert (num_shares > 2) == (work != "prompts")


def test_the_other_kind_of_work_changes_no_bit(device: torch.device, dtype: torch.dtype) -> None:
    """Each kind compiled alone, on the same tiles: equal under the interpreter too."""
    heads = (2, 1, 64)
    backend = backend_of(device, dtype, heads)
    case = case_of(backend, STEPS["mixed"], heads, seed=9)
    together = case.run(backend)
    step = backend.begin_step(case.layout, case.kv)
    decodes = torch.zeros(len(case.q), dtype=torch.bool)
    decodes[[0, 10]] = True
    for alone, rows in (
        (dataclasses.replace(step, tiles=None), decodes),
        (dataclasses.replace(step, decodes=None), ~decodes),
    ):
        found = backend.attention(case.q, case.kv, LAYER, case.scale, alone)
        assert torch.equal(found[rows], together[rows])


def test_blocks_past_two_billion_elements_are_reached(device: torch.device) -> None:
    """An offset in 32 bits would point outside the pool."""
    shape = KVShape(num_layers=1, num_blocks=1, block_size=16, num_kv_heads=2, head_dim=64)
    backend = make_backend(device, torch.float16)
    last = 2**31 // (16 * 2 * 64) + 1
    try:
        # Reserved, hardly touched; and not through `torch.empty`, which these tests have filled.
        memory = torch.UntypedStorage(2 * (last + 1) * 16 * 2 * 64 * 2, device=device)
    except RuntimeError:
        pytest.skip("this machine does not lend 8 GiB of addresses")
    size = (1, 2, last + 1, 2, 16, 64)
    codes = torch.empty(0, dtype=torch.float16, device=device).set_(memory).view(size)
    kv: Any = cuda_kv.CudaKV(kind=KVKind.FLOAT16, codes=codes, scales=None)
    small = case_of(backend, [(5, 1), (0, 7)], (4, 2, 64), seed=7)
    assert cuda_kv.block_size(kv) == shape.block_size
    expected = small.run(backend)
    tables = torch.tensor([[last], [last - 1]], dtype=torch.int32)
    small_kv: Any = small.kv
    first_blocks = small.layout.block_tables.long()[:, 0]
    codes[0, :, tables.flatten().long()] = small_kv.codes[LAYER][:, first_blocks]
    layout = make_layout([(5, 1), (0, 7)], tables, 16)
    step = backend.begin_step(layout, kv)
    write(backend, kv, 0, small.k, small.v, step)
    assert torch.equal(backend.attention(small.q, kv, 0, small.scale, step), expected)
