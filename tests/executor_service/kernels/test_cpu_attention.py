"""Paged attention on the CPU: right, blind to foreign blocks, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from executor_service.kernels import cpu_step
from executor_service.kernels.backend import KVShape
from executor_service.kernels.cpu import CpuBackend
from tests.support.paged import LAYER, make_case, make_layout

HEADS = [(9, 3, 64), (8, 8, 16), (4, 1, 32), (14, 2, 64), (2, 1, 128)]
MIXES: list[list[tuple[int, int]]] = [
    [(0, 1)],
    [(0, 33), (40, 7), (99, 1), (0, 1), (255, 1)],
    [(0, 300), (200, 1), (1000, 1), (17, 1)],
    [(130, 129), (127, 2), (128, 1), (0, 16)],
]


@pytest.mark.parametrize("chunks", MIXES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("block_size", [16, 4])
def test_attention_equals_the_reference_over_shuffled_tables(
    chunks: list[tuple[int, int]],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
) -> None:
    backend = CpuBackend()
    case = make_case(
        backend,
        chunks,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        seed=len(chunks) + block_size,
    )
    found, expected = case.run(backend), case.expected()
    assert found.isfinite().all(), "a block that belongs to nobody was read"
    assert (found.double() - expected).abs().max() < 3e-6


@pytest.mark.parametrize("block_size", [1, 3, 32, 128])
def test_any_block_size_works(block_size: int) -> None:
    backend = CpuBackend()
    case = make_case(
        backend,
        [(5, 1), (0, 20), (200, 1)],
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        block_size=block_size,
        seed=1,
    )
    assert (case.run(backend).double() - case.expected()).abs().max() < 3e-6


def test_writes_land_in_their_slots_and_nowhere_else() -> None:
    backend = CpuBackend()
    case = make_case(
        backend, [(3, 6), (8, 1)], num_heads=4, num_kv_heads=2, head_dim=16, block_size=4, seed=2
    )
    num_blocks = case.pool.shape[2]
    before = backend.read_blocks(case.kv, torch.arange(num_blocks))
    case.run(backend)
    after = backend.read_blocks(case.kv, torch.arange(num_blocks)).flatten(2, 3)
    slots = case.layout.slot_mapping
    assert torch.equal(after[LAYER, 0, slots], case.k)
    assert torch.equal(after[LAYER, 1, slots], case.v)
    begun = case.layout.block_tables[[0, 1], [2, 2]].long()
    cleared = (begun.unsqueeze(1) * 4 + torch.arange(4)).flatten()
    others = torch.ones(after.shape[2], dtype=torch.bool)
    others[slots] = others[cleared] = False
    same = after == before.flatten(2, 3)
    both_nan = after.isnan() & before.flatten(2, 3).isnan()
    assert (same | both_nan)[:, :, others].all()


def _decode_all(backend: CpuBackend, case_kv: Tensor, table: Tensor, q: Tensor) -> Tensor:
    """Each query as a chunk of one token, alone."""
    outputs = []
    for position in range(len(q)):
        step = backend.begin_step(make_layout([(position, 1)], table, 16), case_kv)
        outputs.append(backend.attention(q[position : position + 1], case_kv, LAYER, 0.125, step))
    return torch.cat(outputs)


def _in_chunks(
    backend: CpuBackend, kv: Tensor, table: Tensor, q: Tensor, lengths: Sequence[int]
) -> Tensor:
    outputs, start = [], 0
    for length in lengths:
        step = backend.begin_step(make_layout([(start, length)], table, 16), kv)
        rows = q[start : start + length]
        outputs.append(backend.attention(rows, kv, LAYER, 0.125, step))
        start += length
    return torch.cat(outputs)


def test_a_query_has_the_same_bits_in_every_chunking_and_batch() -> None:
    """The invariant that lets a seeded request give the same tokens under any scheduling."""
    torch.manual_seed(3)
    backend = CpuBackend()
    num_tokens, num_heads, kv_heads, head_dim = 420, 9, 3, 64
    shape = KVShape(
        num_layers=2, num_blocks=60, block_size=16, num_kv_heads=kv_heads, head_dim=head_dim
    )
    kv = backend.allocate_kv(shape)
    tables = torch.randperm(60)[:54].view(2, 27).int()
    table = tables[:1]
    q = torch.randn(num_tokens, num_heads, head_dim)
    step = backend.begin_step(make_layout([(0, num_tokens)], table, 16), kv)
    k, v = (torch.randn(num_tokens, kv_heads, head_dim) for _ in range(2))
    backend.write_kv(kv, LAYER, k, v, step)
    whole = backend.attention(q, kv, LAYER, 0.125, step)
    for lengths in ([64] * 6 + [36], [16] * 26 + [4], [419, 1], [1, 2, 3, 414], [200, 220]):
        assert torch.equal(_in_chunks(backend, kv, table, q, lengths), whole), lengths
    assert torch.equal(_decode_all(backend, kv, table, q), whole)
    chunks = [(419, 1), (7, 1), (300, 20), (60, 1)]
    layout = make_layout(chunks, tables[[0, 1, 0, 1]], 16)
    rows = torch.cat((q[419:], q[:1], q[300:320], q[:1]))
    mixed = backend.attention(rows, kv, LAYER, 0.125, backend.begin_step(layout, kv))
    assert torch.equal(mixed[0], whole[419])
    assert torch.equal(mixed[2:22], whole[300:320])


def test_workspaces_stay_within_what_is_said_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight query heads for one of K and V, tiles as small as they may be, blocks of 128 slots."""
    monkeypatch.setattr(cpu_step, "_MAX_GROUP_SLOTS", 512)
    monkeypatch.setattr(cpu_step, "_MAX_SCORES", 4096)
    backend, longest = CpuBackend(), 700
    case = make_case(
        backend,
        [(longest - 60, 60), (longest - 1, 1), (longest - 1, 1)],
        num_heads=8,
        num_kv_heads=1,
        head_dim=16,
        block_size=128,
        seed=3,
    )
    case.run(backend)
    found = sum(x.numel() for x in (backend._attention._kv, backend._attention._scores))
    most = cpu_step.workspace_elements(longest, 128, 8, 1, 16)
    assert most / 2 < found <= most
