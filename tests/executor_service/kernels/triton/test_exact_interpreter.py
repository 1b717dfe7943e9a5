"""The interpreter that all these tests run in casts and multiplies as a chip and torch do."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

EVERY_BFLOAT16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
EVERY_FP8 = torch.arange(1 << 8, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)


@triton.jit
def cast_kernel(source_ptr, target_ptr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, COUNT)
    values = tl.load(source_ptr + places)
    tl.store(target_ptr + places, values.to(target_ptr.dtype.element_ty))


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    found = tl.dot(tl.load(a_ptr + places), tl.load(b_ptr + places))
    tl.store(out_ptr + places, found)


def cast(source: Tensor, dtype: torch.dtype) -> Tensor:
    target = torch.zeros(len(source), dtype=dtype)
    cast_kernel[(1,)](source, target, COUNT=len(source))
    return target


def floats() -> Tensor:
    """A power of two of them: of every size that bfloat16 has, ties between two, and the ends."""
    bits = torch.randint(-(1 << 31), 1 << 31, (4096,), generator=torch.Generator().manual_seed(0))
    values = bits.to(torch.int32).view(torch.float32)
    values[:1024] = (bits[:1024].to(torch.int32) & -(1 << 15) | 1 << 15).view(torch.float32)
    values[1024:1030] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.4e38, 1e-45])
    return values


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Bit by bit, but for which NaN it is."""
    assert found.dtype == expected.dtype
    missing = expected.isnan()
    assert torch.equal(found.isnan(), missing)
    bits = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[found.element_size()]
    assert torch.equal(found.view(bits)[~missing], expected.view(bits)[~missing])


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_bfloat16_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    assert_same(cast(EVERY_BFLOAT16, dtype), EVERY_BFLOAT16.to(dtype))


def test_integers_become_bfloat16_and_come_back() -> None:
    whole = torch.arange(-256, 256, dtype=torch.int32)
    assert_same(cast(whole, torch.bfloat16), whole.to(torch.bfloat16))
    assert torch.equal(cast(whole.to(torch.bfloat16), torch.int32), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_fp8_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    assert_same(cast(EVERY_FP8, dtype), EVERY_FP8.to(dtype))


def test_floats_are_rounded_to_bfloat16_as_torch_rounds_them() -> None:
    assert_same(cast(floats(), torch.bfloat16), floats().to(torch.bfloat16))


def test_a_product_of_bfloat16_is_that_of_its_values() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(16, 16, generator=generator).to(torch.bfloat16) for _ in range(2))
    found = torch.zeros(16, 16)
    dot_kernel[(1,)](a, b, found, SIDE=16)
    assert torch.allclose(found.double(), a.double() @ b.double(), rtol=0, atol=1e-5)
