"""Paged attention: right, blind to what a query must not see, the same bits in any company."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from executor_service.kernels.backend import KVShape, KVStorage
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.kv import KV_DTYPES
from executor_service.kernels.native.library import Library
from tests.support.paged import LAYER, make_case, make_layout

HEADS = [(9, 3, 64), (8, 8, 16), (4, 1, 32), (14, 2, 64), (2, 1, 128), (64, 1, 16), (6, 2, 20)]
MIXES: list[list[tuple[int, int]]] = [
    [(0, 1)],
    [(0, 33), (40, 7), (99, 1), (0, 1), (255, 1)],
    [(0, 300), (200, 1), (1000, 1), (17, 1)],
    [(130, 129), (127, 2), (128, 1), (0, 16)],
    [(1500, 3)],
    [*((1016 + i, 1) for i in range(7)), *((i, 1) for i in range(20))],
]
"""The last has long chunks that are split beside short ones that are not."""


@pytest.mark.parametrize("chunks", MIXES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("block_size", [16, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_attention_equals_the_reference_over_shuffled_tables(
    native: Library,
    dtype: torch.dtype,
    chunks: list[tuple[int, int]],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
) -> None:
    """Over halves, little is lost but their rounding of keys and values."""
    backend = NativeBackend(native, num_threads=2, kv_dtype=dtype)
    case = make_case(
        backend,
        chunks,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        seed=len(chunks) + block_size,
    )
    kept = {torch.float16: Tensor.half, torch.bfloat16: Tensor.bfloat16}.get(dtype, Tensor.double)
    found, expected = case.run(backend), case.expected(kept)
    assert found.isfinite().all(), "a block that belongs to nobody was read"
    # Matrix tiles multiply queries and weights of 16 bits: 2e-6 in the mean, where float16 itself
    # loses 6e-5 of K and V.
    has_tiles = native.level.startswith("amx") and dtype != torch.float32
    assert (found.double() - expected).abs().max() < (8e-5 if has_tiles else 3e-6)


@pytest.mark.parametrize("block_size", [1, 3, 32, 48, 128])
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_any_block_size_and_dtype_works(
    native: Library, block_size: int, dtype: torch.dtype
) -> None:
    """The reference reads the pool's own values, but not the step's own, which are rounded."""
    backend = NativeBackend(native, num_threads=2, kv_dtype=dtype)
    case = make_case(
        backend,
        [(5, 1), (0, 20), (200, 1)],
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        block_size=block_size,
        seed=1,
    )
    tolerance = {torch.float32: 3e-6, torch.float16: 2e-3}.get(dtype, 3e-2)
    assert (case.run(backend).double() - case.expected()).abs().max() < tolerance


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_writes_land_in_their_slots_and_nowhere_else(
    native: Library, dtype: torch.dtype, block_size: int
) -> None:
    backend = NativeBackend(native, num_threads=1, kv_dtype=dtype)
    case = make_case(
        backend,
        [(3, 6), (8, 1)],
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        block_size=block_size,
        seed=2,
    )
    every = torch.arange(case.pool.shape[2])
    before = backend.read_blocks(case.kv, every).flatten(2, 3)
    case.run(backend)
    after = backend.read_blocks(case.kv, every).flatten(2, 3)
    slots = case.layout.slot_mapping
    for side, x in enumerate((case.k, case.v)):
        error = (after[LAYER, side, slots] - x).abs()
        assert (error <= _allowed(x, dtype)).all()
    others = torch.ones(after.shape[2], dtype=torch.bool)
    others[slots] = False
    same = (after == before) | (after.isnan() & before.isnan())
    assert same[:, :, others].all() and same[1 - LAYER].all()


def _allowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The error of rounding to the nearest."""
    if dtype == torch.int8:
        return x.abs().amax(-1, keepdim=True).expand(x.shape) / 127 * 0.501
    half_unit = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(dtype, 0.0)
    return x.abs() * half_unit + 2.0**-25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_rounded_as_torch_does(native: Library, dtype: torch.dtype) -> None:
    backend = NativeBackend(native, num_threads=1, kv_dtype=dtype)
    bits = torch.arange(0, 2**31, 40013, dtype=torch.int64).int()
    x = torch.cat((bits, bits | -(2**31))).view(torch.float32)
    x = torch.cat((x, torch.tensor([65519.0, 65520.0, 2.0**-24, 2.0**-25, 3 * 2.0**-26, 0.0])))
    x = torch.nn.functional.pad(x, (0, -len(x) % 32)).view(-1, 1, 32)
    blocks = -(-len(x) // 16)
    shape = KVShape(num_layers=1, num_blocks=blocks, block_size=16, num_kv_heads=1, head_dim=32)
    kv = backend.allocate_kv(shape)
    layout = make_layout([(0, len(x))], torch.arange(blocks).int().unsqueeze(0), 16)
    backend.write_kv(kv, 0, x, x, backend.begin_step(layout, kv))
    found = backend.read_blocks(kv, torch.arange(blocks)).flatten(2, 3)[0, :, : len(x)]
    expected = x.to(dtype).float().expand(2, *x.shape)
    assert ((found == expected) | (found.isnan() & expected.isnan())).all()


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_what_is_not_finite_in_the_pool_reaches_those_who_see_it_and_no_other(
    native: Library, dtype: torch.dtype
) -> None:
    backend = NativeBackend(native, num_threads=2, kv_dtype=dtype)
    case = make_case(
        backend, [(0, 50)], num_heads=4, num_kv_heads=2, head_dim=16, block_size=16, seed=3
    )
    case.v[37, 1, 3] = float("inf")
    case.k[37, 0, 3] = float("nan")
    found = case.run(backend)
    assert found[:37].isfinite().all()
    assert not found[37:, :2].isfinite().any(dim=-1).any()
    assert not found[37:, 2:].isfinite().all(dim=-1).any()


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e4, 1e9, 1e14])
def test_however_large_scores_are_outputs_are_means_of_values(
    native: Library, dtype: torch.dtype, size: float
) -> None:
    backend = NativeBackend(native, num_threads=2, kv_dtype=dtype)
    case = make_case(
        backend, [(0, 150)], num_heads=4, num_kv_heads=2, head_dim=64, block_size=16, seed=7
    )
    (case.q if dtype == torch.float16 else case.k).mul_(size)
    largest = case.v.abs().max()
    found = case.run(backend)
    assert found.abs().max() <= largest * 1.01
    assert found[149].abs().max() > largest / 100, "nothing was looked at"


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize(("num_heads", "head_dim", "block_size"), [(9, 64, 16), (6, 20, 4)])
@pytest.mark.parametrize("start", [0, 75])
def test_a_later_token_that_is_not_finite_changes_no_bit_of_an_earlier_one(
    native: Library,
    dtype: torch.dtype,
    num_heads: int,
    head_dim: int,
    block_size: int,
    start: int,
) -> None:
    backend = NativeBackend(native, num_threads=2, kv_dtype=dtype)
    case = make_case(
        backend,
        [(start, 150)],
        num_heads=num_heads,
        num_kv_heads=num_heads // 3,
        head_dim=head_dim,
        block_size=block_size,
        seed=4,
    )
    clean = case.run(backend).clone()
    assert clean.isfinite().all()
    for token in (149, 128, 127, 53, 47, 16, 5, 1):
        case.v[token, 0, 3] = float("inf")
        case.v[token, 1, -1] = float("nan")
        case.k[token, 0, 1] = float("nan")
        found = case.run(backend)
        assert torch.equal(found[:token], clean[:token])
        assert not found[token:, :6].isfinite().all(dim=-1).any()
        assert torch.equal(found[:, 6:], clean[:, 6:])


def _in_chunks(
    backend: NativeBackend,
    kv: KVStorage,
    table: Tensor,
    q: Tensor,
    lengths: Sequence[int],
    block_size: int = 16,
    scale: float = 0.125,
) -> Tensor:
    outputs, start = [], 0
    for length in lengths:
        step = backend.begin_step(make_layout([(start, length)], table, block_size), kv)
        rows = q[start : start + length]
        outputs.append(backend.attention(rows, kv, LAYER, scale, step))
        start += length
    return torch.cat(outputs)


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_a_query_has_the_same_bits_in_every_chunking_batch_and_team(
    native: Library, dtype: torch.dtype
) -> None:
    """The invariant that lets a seeded request give the same tokens under any scheduling."""
    backends = [
        NativeBackend(native, num_threads=threads, kv_dtype=dtype) for threads in (1, 2, 3, 40)
    ]
    backend = backends[0]
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
    for lengths in ([64] * 6 + [36], [16] * 26 + [4], [419, 1], [1, 2, 3, 414], [1] * 420):
        assert torch.equal(_in_chunks(backend, kv, table, q, lengths), whole), lengths
    chunks = [(419, 1), (7, 1), (300, 20), (60, 1)]
    layout = make_layout(chunks, tables[[0, 1, 0, 1]], 16)
    rows = torch.cat((q[419:], q[:1], q[300:320], q[:1]))
    for team in backends:
        assert torch.equal(_in_chunks(team, kv, table, q, [420]), whole)
        assert torch.equal(_in_chunks(team, kv, table, q, [400] + [1] * 20), whole)
        mixed = team.attention(rows, kv, LAYER, 0.125, team.begin_step(layout, kv))
        assert torch.equal(mixed[0], whole[419])
        assert torch.equal(mixed[2:22], whole[300:320])


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size"),
    [(8, 8, 16, 16), (14, 2, 96, 32), (64, 1, 32, 16), (6, 2, 20, 4), (2, 1, 128, 48)],
)
def test_chunks_of_any_size_give_the_bits_of_one(
    native: Library,
    dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
) -> None:
    """Heads that do not fill tiles, and more of a group than are computed at once."""
    backend = NativeBackend(native, num_threads=2, kv_dtype=dtype)
    case = make_case(
        backend,
        [(0, 170)],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        seed=6,
    )
    whole = case.run(backend)
    table = case.layout.block_tables
    for lengths in ([1] * 170, [130, 1, 39], [7] * 24 + [2], [127, 2, 41]):
        found = _in_chunks(backend, case.kv, table, case.q, lengths, block_size, case.scale)
        assert torch.equal(found, whole), lengths
