from __future__ import annotations

import pytest
import torch
from torch import Tensor

from executor_service.kernels import cuda_kv, reference
from executor_service.kernels.backend import KVShape
from executor_service.kernels.cuda_kv import CudaKV
from executor_service.kernels.kv_kind import KVKind, kind_of
from executor_service.kernels.launch_config import AMPERE, coding_of
from executor_service.kernels.rotary_kv_write import rotary_kv_write
from tests.support.cuda_backends import TOLERANCES

NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS = 4, 16, 3
QUANTIZED = [KVKind.FP8_E4M3, KVKind.INT8, KVKind.INT4]


def pool_of(kind: KVKind, head_dim: int, device: torch.device) -> CudaKV:
    shape = KVShape(
        num_layers=2,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_kv_heads=NUM_HEADS,
        head_dim=head_dim,
    )
    kv = cuda_kv.allocate(shape, kind, device)
    cuda_kv.fill_blocks(kv, torch.arange(NUM_BLOCKS), float("nan"))
    return kv


def write(kv: CudaKV, k: Tensor, v: Tensor, slots: Tensor) -> Tensor:
    """The pool's second layer afterwards: [2, blocks, block_size, heads, head_dim]."""
    device = kv.codes.device
    cos = torch.ones(k.shape[0], k.shape[2] // 2, device=device)
    rotary_kv_write(
        k.to(device),
        v.to(device),
        cos,
        cos * 0,
        cuda_kv.of_layer(kv, 1),
        slots.to(device),
        coding_of(kv.kind, AMPERE),
    )
    return cuda_kv.read_blocks(kv, torch.arange(NUM_BLOCKS))[1].cpu()


def test_writes_the_named_slots_and_no_others(device: torch.device, dtype: torch.dtype) -> None:
    head_dim = 80
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:45]
    # Keys and values as views of one projection, so that rows are far apart.
    rows = torch.randn(45, 4 * NUM_HEADS, head_dim).to(dtype)
    k, v = rows[:, :NUM_HEADS], rows[:, 2 * NUM_HEADS : 3 * NUM_HEADS]
    kv = pool_of(kind_of(dtype), head_dim, device)
    expected = cuda_kv.read_blocks(kv, torch.arange(NUM_BLOCKS)).cpu()
    reference.write_kv(expected, 1, k, v, slots)
    found = write(kv, k, v, slots)
    assert torch.allclose(found, expected[1], rtol=0, atol=0, equal_nan=True)
    assert cuda_kv.read_blocks(kv, torch.arange(NUM_BLOCKS))[0].isnan().all()


@pytest.mark.parametrize("head_dim", [16, 80, 96, 128])
def test_queries_and_keys_are_turned_and_values_are_not(
    head_dim: int, device: torch.device, dtype: torch.dtype
) -> None:
    num_tokens, num_queries = 19, 5
    sizes = [num_queries + NUM_HEADS, NUM_HEADS]
    rows = torch.randn(num_tokens, sum(sizes), head_dim).to(dtype)
    qk, v = rows.split(sizes, dim=1)
    angles = torch.rand(num_tokens, head_dim // 2) * 100
    cos, sin = angles.cos(), angles.sin()
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:num_tokens]
    kv = pool_of(kind_of(dtype), head_dim, device)
    pool = cuda_kv.of_layer(kv, 1)
    on_device = [x.to(device) for x in (qk, v, cos, sin)]
    found = rotary_kv_write(*on_device, pool, slots.to(device), "float")
    expected = reference.rotary(qk.double(), cos.double(), sin.double())
    assert found.is_contiguous()
    limit = 2 * TOLERANCES[dtype]
    assert (found.double().cpu() - expected[:, :num_queries]).abs().max() < limit
    keys, values = cuda_kv.read_blocks(kv, torch.arange(NUM_BLOCKS))[1].cpu().flatten(1, 2)
    assert (keys[slots].double() - expected[:, num_queries:]).abs().max() < limit
    assert torch.equal(values[slots], v)
    assert keys.isnan().sum() == (keys.shape[0] - num_tokens) * NUM_HEADS * head_dim


def values_of(num_tokens: int, head_dim: int) -> Tensor:
    """Rows of every magnitude, one of zeros, one of a single value, one beyond fp8."""
    x = torch.randn(num_tokens, NUM_HEADS, head_dim)
    x *= torch.logspace(-4, 2, num_tokens)[:, None, None]
    x[0], x[1], x[2, 0, 3] = 0.0, -2.5, 700.0
    x[3] = torch.linspace(-0.02, 0.02, head_dim)
    return x


@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_codes_are_those_of_the_reference(
    kind: KVKind, head_dim: int, device: torch.device
) -> None:
    k, v = values_of(21, head_dim), values_of(21, head_dim).flip(0)
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:21]
    kv = pool_of(kind, head_dim, device)
    write(kv, k, v, slots)
    pool = cuda_kv.of_layer(kv, 1)
    for x, codes, scales in (
        (k, pool.keys, pool.key_scales),
        (v, pool.values, pool.value_scales),
    ):
        expected = reference.encode_kv(x, kind)
        blocks, offsets = slots // BLOCK_SIZE, slots % BLOCK_SIZE
        differing = codes.cpu()[blocks, :, offsets] != expected.codes
        # A GPU joins product and rounding, which may decide a tie the other way.
        assert differing.float().mean() <= (0.001 if device.type == "cuda" else 0)
        if scales is not None:
            assert expected.scales is not None
            assert torch.equal(scales.cpu()[blocks, :, offsets], expected.scales)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_what_is_not_a_number_stays_so(kind: KVKind, device: torch.device) -> None:
    """A fault of a model must not turn into plausible numbers."""
    k = torch.ones(2, NUM_HEADS, 64)
    k[0, 1, 40] = torch.nan
    found = write(pool_of(kind, 64, device), k, k, torch.tensor([5, 9]))
    assert found[:, 0, 5, 1, 40].isnan().all()
    assert torch.allclose(found[:, 0, 9], k[1], atol=0.01)
    assert torch.allclose(found[:, 0, 5, [0, 2]], k[0, [0, 2]], atol=0.01)


def test_converts_to_the_pools_dtype(device: torch.device) -> None:
    k = torch.randn(5, NUM_HEADS, 64)
    found = write(pool_of(KVKind.FLOAT16, 64, device), k, -k, torch.arange(5))
    assert torch.equal(found[0, 0, :5], k.half())
    assert torch.equal(found[1, 0, :5], -k.half())
