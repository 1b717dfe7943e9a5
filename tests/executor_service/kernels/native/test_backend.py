"""Single operations against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from executor_service.kernels import reference
from executor_service.kernels.backend import KVShape
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.kv import KV_DTYPES
from executor_service.kernels.native.library import Library

ROWS = (1, 2, 3, 7, 16, 33, 130)


@pytest.fixture
def backend(native: Library) -> NativeBackend:
    return NativeBackend(native, num_threads=2)


def assert_near(found: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max().clamp(min=1)
    assert error < tolerance


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [576, 20, 7])
def test_norms_equal_the_reference_and_add_in_place(
    backend: NativeBackend, rows: int, width: int
) -> None:
    x, residual, weight = (
        torch.randn(rows, width) * 30,
        torch.randn(rows, width),
        torch.randn(width),
    )
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5)
    assert_near(backend.rms_norm(x, weight, 1e-5), expected)
    normed, total = reference.add_rms_norm(x.double(), residual.double(), weight.double(), 1e-5)
    assert_near(backend.add_rms_norm(x, residual, weight, 1e-5), normed)
    assert_near(residual, total)


def test_norm_of_heads_works_on_the_last_dimension(backend: NativeBackend) -> None:
    x, weight = torch.randn(5, 4, 32)[:, 1:3], torch.randn(32)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-6)
    assert_near(backend.rms_norm(x, weight, 1e-6), expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("head_dim", [64, 20])
def test_rotary_equals_the_reference_on_a_slice_of_heads(
    backend: NativeBackend, rows: int, head_dim: int
) -> None:
    x = torch.randn(rows, 7, head_dim)[:, 2:5]
    angles = torch.rand(rows, head_dim // 2) * 100
    cos, sin = angles.cos(), angles.sin()
    before = x.clone()
    assert_near(backend.rotary(x, cos, sin), reference.rotary(x.double(), cos, sin))
    assert torch.equal(x, before)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [96, 21])
def test_gated_activation_equals_the_reference(
    backend: NativeBackend, rows: int, width: int
) -> None:
    x = torch.randn(rows, 2 * width) * 8
    assert_near(backend.silu_mul(x), reference.silu_mul(x.double()))


def test_gated_activation_at_the_ends_of_the_numbers(backend: NativeBackend) -> None:
    gate = torch.tensor([0.0, -0.0, 88.0, 1e30, -88.0, -1e30, 1e-30, float("inf"), float("nan")])
    found = backend.silu_mul(torch.cat((gate, torch.ones(9))).unsqueeze(0))[0]
    expected = gate * torch.sigmoid(gate)
    assert (found - expected)[:7].abs().max() < 1e-30
    assert found[7] == float("inf")
    assert found[8].isnan()


@pytest.mark.parametrize(
    "run",
    [
        lambda backend, x: backend.rms_norm(x, torch.ones(64), 1e-5),
        lambda backend, x: backend.add_rms_norm(x, torch.zeros_like(x), torch.ones(64), 1e-5),
        lambda backend, x: backend.silu_mul(x),
    ],
    ids=["rms_norm", "add_rms_norm", "silu_mul"],
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_its_row_and_in_no_other(
    backend: NativeBackend, run: Callable[[NativeBackend, Tensor], Tensor], bad: float
) -> None:
    x = torch.randn(12, 64)
    expected = run(backend, x.clone())
    x[5, 40] = bad
    found = run(backend, x)
    others = torch.arange(12) != 5
    assert torch.equal(found[others], expected[others])
    assert not found[5].isfinite().all()


SHAPE = KVShape(num_layers=2, num_blocks=6, block_size=4, num_kv_heads=3, head_dim=8)


@pytest.fixture(params=KV_DTYPES, ids=str)
def stored(native: Library, request: pytest.FixtureRequest) -> NativeBackend:
    return NativeBackend(native, num_threads=2, kv_dtype=request.param)


def test_a_pool_starts_at_zero_and_reads_back_in_logical_shape(stored: NativeBackend) -> None:
    kv = stored.allocate_kv(SHAPE)
    blocks = stored.read_blocks(kv, torch.tensor([5, 0]))
    assert blocks.shape == (2, 2, 2, 4, 3, 8)
    assert not blocks.any()


def test_block_copies_equal_the_reference_even_in_chains(stored: NativeBackend) -> None:
    kv = stored.allocate_kv(SHAPE)
    every = torch.arange(6)
    for block in range(6):
        stored.fill_blocks(kv, torch.tensor([block]), float(block))
    pool = stored.read_blocks(kv, every)
    sources, destinations = torch.tensor([0, 1, 4, 4]), torch.tensor([1, 2, 5, 3])
    reference.copy_blocks(pool, sources, destinations)
    stored.copy_blocks(kv, sources, destinations)
    assert torch.equal(stored.read_blocks(kv, every), pool)


def test_filling_blocks_touches_no_other(stored: NativeBackend) -> None:
    kv = stored.allocate_kv(SHAPE)
    stored.fill_blocks(kv, torch.tensor([2, 4]), 7.0)
    blocks = stored.read_blocks(kv, torch.arange(6))
    assert (blocks[:, :, [2, 4]] == 7).all()
    assert not blocks[:, :, [0, 1, 3, 5]].any()
