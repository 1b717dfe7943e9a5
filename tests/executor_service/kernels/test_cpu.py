"""Every kernel of the CPU backend against the float64 reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from executor_service.kernels import reference
from executor_service.kernels.backend import KVShape
from executor_service.kernels.cpu import CpuBackend
from executor_service.kernels.weight_rows import EXACT_WEIGHTS

F = torch.nn.functional
ROWS = (1, 2, 3, 7, 16, 33, 130)


@pytest.fixture
def backend() -> CpuBackend:
    return CpuBackend()


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(sum(request.node.name.encode()))


def assert_near(found: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max().clamp(min=1)
    assert error < tolerance


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (96, 1536), (1000, 576), (3, 8)])
def test_linear_is_a_product_with_the_transposed_weight(
    backend: CpuBackend, rows: int, outputs: int, inputs: int
) -> None:
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    packed = backend.prepare_weight([weight], EXACT_WEIGHTS.linears)
    for b in (None, bias):
        expected = reference.linear(x.double(), weight.double(), None if b is None else b.double())
        assert_near(backend.linear(x, packed, b), expected)


@pytest.mark.parametrize("inputs", [64, 576, 1536])
def test_a_linears_row_has_the_same_bits_whatever_the_number_of_rows(
    backend: CpuBackend, inputs: int
) -> None:
    x = torch.randn(300, inputs)
    packed = backend.prepare_weight([torch.randn(192, inputs)], EXACT_WEIGHTS.linears)
    whole = backend.linear(x, packed, None)
    for rows in ROWS:
        for first in (0, 1, 100):
            part = backend.linear(x[first : first + rows], packed, None)
            assert torch.equal(part, whole[first : first + rows])


@pytest.mark.parametrize("rows", ROWS)
def test_norms_equal_the_reference_and_add_in_place(backend: CpuBackend, rows: int) -> None:
    x, residual, weight = torch.randn(rows, 576) * 30, torch.randn(rows, 576), torch.randn(576)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5)
    assert_near(backend.rms_norm(x, weight, 1e-5), expected)
    normed, total = reference.add_rms_norm(x.double(), residual.double(), weight.double(), 1e-5)
    assert_near(backend.add_rms_norm(x, residual, weight, 1e-5), normed)
    assert_near(residual, total)


def test_norm_of_heads_works_on_the_last_dimension(backend: CpuBackend) -> None:
    x, weight = torch.randn(5, 4, 32)[:, 1:3], torch.randn(32)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-6)
    assert_near(backend.rms_norm(x, weight, 1e-6), expected)


@pytest.mark.parametrize("rows", ROWS)
def test_rotary_equals_the_reference_on_a_slice_of_heads(backend: CpuBackend, rows: int) -> None:
    x = torch.randn(rows, 7, 64)[:, 2:5]
    angles = torch.rand(rows, 32) * 100
    cos, sin = angles.cos(), angles.sin()
    assert_near(backend.rotary(x, cos, sin), reference.rotary(x.double(), cos, sin))


@pytest.mark.parametrize("rows", ROWS)
def test_gated_activation_equals_the_reference(backend: CpuBackend, rows: int) -> None:
    x = torch.randn(rows, 2 * 96) * 8
    assert_near(backend.silu_mul(x), reference.silu_mul(x.double()))


SHAPE = KVShape(num_layers=2, num_blocks=6, block_size=4, num_kv_heads=3, head_dim=8)


def test_a_pool_starts_at_zero_and_reads_back_in_logical_shape(backend: CpuBackend) -> None:
    kv = backend.allocate_kv(SHAPE)
    blocks = backend.read_blocks(kv, torch.tensor([5, 0]))
    assert blocks.shape == (2, 2, 2, 4, 3, 8)
    assert not blocks.any()


def test_block_copies_equal_the_reference_even_in_chains(backend: CpuBackend) -> None:
    kv = backend.allocate_kv(SHAPE)
    every = torch.arange(6)
    for block in range(6):
        backend.fill_blocks(kv, torch.tensor([block]), float(block))
    pool = backend.read_blocks(kv, every)
    sources, destinations = torch.tensor([0, 1, 4, 4]), torch.tensor([1, 2, 5, 3])
    reference.copy_blocks(pool, sources, destinations)
    backend.copy_blocks(kv, sources, destinations)
    assert torch.equal(backend.read_blocks(kv, every), pool)


def test_filling_blocks_touches_no_other(backend: CpuBackend) -> None:
    kv = backend.allocate_kv(SHAPE)
    backend.fill_blocks(kv, torch.tensor([2, 4]), 7.0)
    blocks = backend.read_blocks(kv, torch.arange(6))
    assert (blocks[:, :, [2, 4]] == 7).all()
    assert not blocks[:, :, [0, 1, 3, 5]].any()
