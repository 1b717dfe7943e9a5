"""Linears of every kind against float64 over weights that the gguf library dequantizes."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from gguf.quants import dequantize, quantize
from torch import Tensor

from executor_service.kernels.native import library
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.library import Library
from executor_service.kernels.native.weights import NativeWeight, WeightArena, pack
from executor_service.kernels.weight_rows import Blocks, Rows, WeightKind, WeightRule
from tests.executor_service.kernels.native.conftest import RUNNABLE
from tests.support.gguf_blocks import gguf_type, random_blocks

EXACT_KINDS = (WeightKind.FLOAT32, WeightKind.INT8)
BLOCK_KINDS = tuple(kind for kind in WeightKind if kind not in EXACT_KINDS)
QUANTIZED = tuple(kind for kind in WeightKind if kind is not WeightKind.FLOAT32)
SHAPES = ((96, 512), (7, 256), (131, 768), (1, 1536), (41, 2304))
"""Of which some fill panels and runs, and some end within them."""
POISON = 7e33

kinds = pytest.mark.parametrize("kind", WeightKind, ids=lambda kind: kind.label)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def rule(kind: WeightKind) -> WeightRule:
    return WeightRule(kept=frozenset(BLOCK_KINDS), floats=kind)


def rows_of(kind: WeightKind, out_features: int, in_features: int) -> Rows:
    if kind in EXACT_KINDS:
        return torch.randn(out_features, in_features) * 0.05
    blocks = random_blocks(kind, out_features, in_features)
    return as_blocks(kind, torch.from_numpy(blocks), in_features)


def as_blocks(kind: WeightKind, data: Tensor, in_features: int) -> Blocks:
    return Blocks(kind=kind, out_features=len(data), in_features=in_features, data=data)


def dense(rows: Rows) -> Tensor:
    """By the library for blocks; float64."""
    if isinstance(rows, Tensor):
        return rows.double()
    return torch.from_numpy(dequantize(rows.data.numpy(), gguf_type(rows.kind))).double()


def as_quantized(x: Tensor) -> Tensor:
    """What the kernels make of activations for all kinds but float32."""
    groups = x.view(len(x), -1, 32)
    most = groups.abs().amax(dim=2, keepdim=True)
    inverse = torch.full_like(most, 127) / most  # 127 / most would be a product in torch
    codes = (groups * inverse).round()
    return (codes.double() * (most / 127).double()).view(x.shape)


class Linears:
    """One library, as many threads as are asked for."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def pack(self, rows: list[Rows], kind: WeightKind) -> NativeWeight:
        return pack(self._library, WeightArena(), rows, rule(kind))

    def multiply(
        self, x: Tensor, weight: NativeWeight, bias: Tensor | None, *, num_threads: int = 2
    ) -> Tensor:
        struct, call = weight.struct(bias), self._library.call
        y = torch.full((len(x), weight.out_features), POISON)
        scratch = torch.full((call.oct_linear_scratch(struct, len(x)),), 0xAA, dtype=torch.uint8)
        call.oct_use_threads(num_threads)
        call.oct_linear(struct, x.data_ptr(), len(x), y.data_ptr(), scratch.data_ptr())
        return y

    def dense(self, weight: NativeWeight) -> Tensor:
        """All rows as an embedding has them."""
        y = torch.full((weight.out_features, weight.in_features), POISON)
        ids = torch.arange(weight.out_features)
        self._library.call.oct_embed(weight.struct(None), ids.data_ptr(), len(ids), y.data_ptr())
        return y


@pytest.fixture
def linears(native: Library) -> Linears:
    return Linears(native)


@kinds
@shapes
@pytest.mark.parametrize("num_rows", [19, 53])
def test_products_are_those_of_the_quantized_numbers(
    linears: Linears, kind: WeightKind, shape: tuple[int, int], num_rows: int
) -> None:
    rows = rows_of(kind, *shape)
    weight, bias, x = (
        linears.pack([rows], kind),
        torch.randn(shape[0]),
        torch.randn(num_rows, shape[1]),
    )
    exact = dense(rows) if kind is not WeightKind.INT8 else linears.dense(weight).double()
    inputs = x.double() if kind is WeightKind.FLOAT32 else as_quantized(x)
    expected = inputs @ exact.T + bias
    # What sums of float32 may lose: a few roundings of the sum of magnitudes.
    bound = 1e-6 * (inputs.abs() @ exact.abs().T + bias.abs())
    found = linears.multiply(x, weight, bias)
    assert (found - expected).abs().le(bound).all()
    assert (linears.multiply(x, weight, None) + bias - expected).abs().le(bound).all()


@kinds
def test_products_are_near_those_of_the_unquantized_activations(
    linears: Linears, kind: WeightKind
) -> None:
    rows, x = rows_of(kind, 64, 768), torch.randn(30, 768)
    expected = x.double() @ dense(rows).T
    found = linears.multiply(x, linears.pack([rows], kind), None)
    error = (found - expected).norm() / expected.norm()
    assert error < (1e-6 if kind is WeightKind.FLOAT32 else 1.5e-2)


@kinds
def test_a_row_has_the_same_bits_whatever_is_beside_it(linears: Linears, kind: WeightKind) -> None:
    weight = linears.pack([rows_of(kind, 83, 1536)], kind)
    x = torch.randn(230, 1536)
    whole = linears.multiply(x, weight, None)
    for num_rows in (*range(1, 50), 97):
        assert torch.equal(linears.multiply(x[:num_rows], weight, None), whole[:num_rows])
    assert torch.equal(linears.multiply(x[101:140].contiguous(), weight, None), whole[101:140])


@kinds
def test_the_number_of_threads_does_not_change_a_bit(linears: Linears, kind: WeightKind) -> None:
    weight, x = linears.pack([rows_of(kind, 100, 512)], kind), torch.randn(37, 512)
    alone = linears.multiply(x, weight, None, num_threads=1)
    for num_threads in (2, 3, 7):
        assert torch.equal(linears.multiply(x, weight, None, num_threads=num_threads), alone)


@kinds
@pytest.mark.parametrize("num_rows", [6, 35])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_stays_so_and_alone(
    linears: Linears, kind: WeightKind, bad: float, num_rows: int
) -> None:
    weight, x = linears.pack([rows_of(kind, 50, 512)], kind), torch.randn(num_rows, 512)
    clean = linears.multiply(x, weight, None)
    x[2, 77] = bad
    found = linears.multiply(x, weight, None)
    assert not found[2].isfinite().any()
    others = [row for row in range(num_rows) if row != 2]
    assert torch.equal(found[others], clean[others])


@kinds
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-20, 1e25])
def test_activations_of_any_size_are_multiplied(
    linears: Linears, kind: WeightKind, size: float
) -> None:
    rows, x = rows_of(kind, 20, 256), torch.randn(3, 256) * size
    expected = x.double() @ dense(rows).T
    found = linears.multiply(x, linears.pack([rows], kind), None)
    assert found.isfinite().all()
    assert (found - expected).norm() <= 2e-2 * expected.norm() + 1e-28


@pytest.mark.parametrize("kind", BLOCK_KINDS, ids=lambda kind: kind.label)
@shapes
def test_rows_come_back_as_the_library_dequantizes_them(
    linears: Linears, kind: WeightKind, shape: tuple[int, int]
) -> None:
    rows = rows_of(kind, *shape)
    torch.testing.assert_close(
        linears.dense(linears.pack([rows], kind)), dense(rows).float(), rtol=1e-6, atol=1e-9
    )


def test_float32_rows_come_back_as_they_are(linears: Linears) -> None:
    rows = torch.randn(37, 29)
    assert torch.equal(linears.dense(linears.pack([rows], WeightKind.FLOAT32)), rows)


@pytest.mark.parametrize(
    "kind", [WeightKind.Q4_0, WeightKind.Q4_1, WeightKind.Q8_0], ids=lambda kind: kind.label
)
def test_floats_are_quantized_as_the_library_does(linears: Linears, kind: WeightKind) -> None:
    floats = torch.randn(40, 256) * 0.1
    floats[3, :32] = 0
    blocks = torch.from_numpy(quantize(floats.numpy(), gguf_type(kind)))
    expected = linears.dense(linears.pack([as_blocks(kind, blocks, 256)], kind))
    assert torch.equal(linears.dense(linears.pack([floats], kind)), expected)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (WeightKind.INT8, 0.006),
        (WeightKind.Q8_0, 0.006),
        (WeightKind.Q6_K, 0.02),
        (WeightKind.Q4_K, 0.075),
        (WeightKind.Q4_1, 0.08),
        (WeightKind.Q4_0, 0.1),
    ],
)
def test_quantized_floats_are_near(linears: Linears, kind: WeightKind, most: float) -> None:
    floats = torch.randn(64, 768) * 0.05
    error = (linears.dense(linears.pack([floats], kind)) - floats).norm() / floats.norm()
    assert error < most


def test_int8_rows_of_any_size_keep_their_precision(linears: Linears) -> None:
    floats = torch.randn(8, 128) * torch.logspace(-30, 30, 8).unsqueeze(1)
    floats[5] = 0
    found = linears.dense(linears.pack([floats], WeightKind.INT8))
    assert torch.equal(found[5], floats[5])
    error = (found - floats).abs().amax(1) / floats.abs().amax(1).clamp(min=1e-30)
    assert error.max() < 0.005


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.label)
@pytest.mark.parametrize("in_features", [40, 64, 96])
def test_rows_that_are_not_whole_blocks_fall_back(
    linears: Linears, kind: WeightKind, in_features: int
) -> None:
    weight = linears.pack([torch.randn(9, in_features)], kind)
    expected = kind if in_features % kind.block_size == 0 else WeightKind.INT8
    if in_features % 32:
        expected = WeightKind.FLOAT32
    assert list(weight.bytes_by_kind) == [expected]


def test_a_weight_of_several_kinds_is_each_of_them(linears: Linears) -> None:
    parts = [
        rows_of(WeightKind.Q4_K, 40, 512),
        rows_of(WeightKind.Q6_K, 21, 512),
        torch.randn(5, 512),
        rows_of(WeightKind.Q8_0, 33, 512),
    ]
    bias, x = torch.randn(99), torch.randn(45, 512)
    weight = linears.pack(parts, WeightKind.FLOAT32)
    assert len(weight.bytes_by_kind) == 4
    alone = [
        linears.multiply(x, linears.pack([part], WeightKind.FLOAT32), piece.contiguous())
        for part, piece in zip(parts, bias.split([40, 21, 5, 33]), strict=True)
    ]
    for num_threads in (1, 3):
        found = linears.multiply(x, weight, bias, num_threads=num_threads)
        assert torch.equal(found, torch.cat(alone, dim=1))


@pytest.mark.parametrize("kind", BLOCK_KINDS, ids=lambda kind: kind.label)
def test_packed_blocks_take_no_more_memory_than_stored_ones(
    linears: Linears, kind: WeightKind
) -> None:
    rows = cast(Blocks, rows_of(kind, 256, 1536))
    packed = linears.pack([rows], kind).bytes_by_kind[kind]
    assert packed <= 1.03 * rows.data.numel()


def test_neighbours_of_one_kind_are_stacked(native: Library) -> None:
    backend = NativeBackend(native, num_threads=2)
    parts = [torch.randn(n, 64) for n in (24, 8, 8)]
    stacked = backend.prepare_weight(parts, rule(WeightKind.FLOAT32))
    x = torch.randn(4, 64)
    torch.testing.assert_close(backend.linear(x, stacked, None), x @ torch.cat(parts).T)
    assert backend.weights_dtype() == "float32"


@kinds
def test_levels_that_fuse_have_the_same_bits(kind: WeightKind) -> None:
    """Only the portable level rounds products before it adds them."""
    levels = [level for level in RUNNABLE if level.name != "portable"]
    if len(levels) < 2:
        pytest.skip("only one such level runs here")
    rows, x = rows_of(kind, 77, 1536), torch.randn(130, 1536)
    found = []
    for level in levels:
        linears = Linears(library.open_level(level))
        found.append(linears.multiply(x, linears.pack([rows], kind), None))
    assert all(torch.equal(other, found[0]) for other in found[1:])


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.label)
def test_all_levels_quantize_floats_alike(kind: WeightKind) -> None:
    floats = torch.randn(20, 512) * 0.1
    dense_rows = []
    for level in RUNNABLE:
        linears = Linears(library.open_level(level))
        dense_rows.append(linears.dense(linears.pack([floats], kind)))
    assert all(torch.equal(rows, dense_rows[0]) for rows in dense_rows)
