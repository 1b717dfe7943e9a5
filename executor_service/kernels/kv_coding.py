# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Elements of the KV pool to and from their codes, within kernels.

`reference.encode_kv` and `decode_kv` are the definition. A row is one head of one token. CODING is
how a kernel treats the pool, see `launch_config.coding_of`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from executor_service.kernels.kv_kind import FP8_LARGEST, INT4_GROUP

GROUP_DIMS = tl.constexpr(INT4_GROUP)
LARGEST_FP8 = tl.constexpr(FP8_LARGEST)


@triton.jit
def rounded(x):
    """To the nearest integer, halves to even, for magnitudes below 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def fp8_codes(x):
    """fp32 -> uint8, e4m3 rounded to nearest even. Integer work: no chip needs to know the type."""
    magnitude = tl.minimum(tl.abs(x), LARGEST_FP8)
    bits = magnitude.to(tl.int32, bitcast=True)
    # Exponents are biased by 127 and 7; 20 of the 23 bits of the mantissa go.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Near 16384 an fp32 steps by 2^-9, as e4m3 does below 2^-6.
    tiny = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    codes = tl.where(magnitude < 0.015625, tiny, normal)
    codes = tl.where(x != x, 0x7F, codes)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (codes | sign).to(tl.uint8)


@triton.jit
def fp8_values(codes, dtype: tl.constexpr):
    """uint8 -> fp16/bf16/fp32, without a type that chips before 8.9 do not have."""
    wide = codes.to(tl.int16)
    # The same bits as an fp16 are 2^8 too small, also where they are subnormal.
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    values = bits.to(tl.float16, bitcast=True) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), values).to(dtype)


@triton.jit
def store_rows(
    x,  # [ROWS, HEAD_DIM_PAD] fp32, 0 past HEAD_DIM
    codes_ptr,
    scales_ptr,
    rows,  # [ROWS] int64, of the pool
    present,  # [ROWS]
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    CODING: tl.constexpr,
):
    """Encodes rows into the pool."""
    dims = tl.arange(0, HEAD_DIM_PAD)
    inside = present[:, None] & (dims < HEAD_DIM)[None, :]
    targets = rows[:, None] * HEAD_DIM + dims[None, :]
    if CODING == "float":
        tl.store(codes_ptr + targets, x.to(codes_ptr.dtype.element_ty), mask=inside)
    elif CODING == "int8":
        largest = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-30)
        steps = x * tl.div_rn(127.0, largest)[:, None]
        codes = tl.minimum(tl.maximum(rounded(steps), -127.0), 127.0)
        codes = tl.where(steps == steps, codes, 0.0)
        # A maximum may drop a NaN, and no code is one: the scale is, for what is not finite.
        scales = largest * (1 / 127.0) + tl.sum(x * 0.0, axis=1)
        tl.store(codes_ptr + targets, codes.to(tl.int8), mask=inside)
        tl.store(scales_ptr + rows, scales, mask=present)
    elif CODING == "int4":
        _store_int4(x, codes_ptr, scales_ptr, rows, present, HEAD_DIM, HEAD_DIM_PAD)
    else:
        tl.store(codes_ptr + targets, fp8_codes(x), mask=inside)


@triton.jit
def _store_int4(
    x, codes_ptr, scales_ptr, rows, present, HEAD_DIM: tl.constexpr, HEAD_DIM_PAD: tl.constexpr
):
    ROWS: tl.constexpr = x.shape[0]
    HALF: tl.constexpr = HEAD_DIM_PAD // 2
    DIMS: tl.constexpr = min(GROUP_DIMS, HEAD_DIM_PAD)
    GROUPS: tl.constexpr = HEAD_DIM_PAD // DIMS
    USED: tl.constexpr = (HEAD_DIM + DIMS - 1) // DIMS
    in_head = (tl.arange(0, HEAD_DIM_PAD) < HEAD_DIM)[None, :]
    groups = tl.arange(0, GROUPS)
    used = (groups < USED)[None, :]
    least = tl.min(tl.where(in_head, x, float("inf")).reshape(ROWS, GROUPS, DIMS), axis=2)
    most = tl.max(tl.where(in_head, x, float("-inf")).reshape(ROWS, GROUPS, DIMS), axis=2)
    least = tl.where(used, least, 0.0)
    most = tl.where(used, most, 0.0)
    grouped = x.reshape(ROWS, GROUPS, DIMS)
    # The codes are of the scale and offset as they are kept, not of those before rounding.
    spread = tl.maximum((most - least) * (1 / 15.0), 5.9604644775390625e-08)
    scales = (spread + tl.sum(grouped * 0.0, axis=2)).to(tl.float16)
    offsets = least.to(tl.float16)
    steps = grouped - offsets.to(tl.float32)[:, :, None]
    steps = rounded(steps * tl.div_rn(1.0, scales.to(tl.float32))[:, :, None])
    codes = tl.minimum(tl.maximum(steps, 0.0), 15.0)
    codes = tl.where(steps == steps, codes, 0.0).to(tl.uint8)
    low, high = tl.split(codes.reshape(ROWS, HALF, 2))
    halves = tl.arange(0, HALF)
    bytes_inside = present[:, None] & (halves < HEAD_DIM // 2)[None, :]
    targets = rows[:, None] * (HEAD_DIM // 2) + halves[None, :]
    tl.store(codes_ptr + targets, low | (high << 4), mask=bytes_inside)
    pairs = (rows[:, None] * USED + groups[None, :]) * 2
    tl.store(scales_ptr + pairs, scales, mask=present[:, None] & used)
    tl.store(scales_ptr + pairs + 1, offsets, mask=present[:, None] & used)


@triton.jit
def decoded(codes, dtype: tl.constexpr, CODING: tl.constexpr):
    """Codes of a byte or more -> dtype; int8 without its scale."""
    if CODING == "fp8":
        return codes.to(tl.float8e4nv, bitcast=True).to(dtype)
    if CODING == "fp8_bits":
        return fp8_values(codes, dtype)
    return codes.to(dtype)


@triton.jit
def load_int4(
    codes_ptr,
    scales_ptr,
    rows,  # [ROWS] int64, of the pool
    present,  # [ROWS]
    dtype: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    MASKED: tl.constexpr,
):
    """[ROWS, HEAD_DIM_PAD]; 0 past HEAD_DIM, and where not `present` if MASKED."""
    ROWS: tl.constexpr = rows.shape[0]
    DIMS: tl.constexpr = min(GROUP_DIMS, HEAD_DIM_PAD)
    GROUPS: tl.constexpr = HEAD_DIM_PAD // DIMS
    USED: tl.constexpr = (HEAD_DIM + DIMS - 1) // DIMS
    halves = tl.arange(0, HEAD_DIM_PAD // 2)
    groups = tl.arange(0, GROUPS)
    code_mask = (halves < HEAD_DIM // 2)[None, :]
    pair_mask = (groups < USED)[None, :]
    if MASKED:
        code_mask = code_mask & present[:, None]
        pair_mask = pair_mask & present[:, None]
    offsets = rows[:, None] * (HEAD_DIM // 2) + halves[None, :]
    packed = tl.load(codes_ptr + offsets, mask=code_mask, other=0)
    pairs = (rows[:, None] * USED + groups[None, :]) * 2
    scales = tl.load(scales_ptr + pairs, mask=pair_mask, other=0.0).to(tl.float32)
    least = tl.load(scales_ptr + pairs + 1, mask=pair_mask, other=0.0).to(tl.float32)
    codes = tl.interleave(packed & 15, packed >> 4).to(tl.float32).reshape(ROWS, GROUPS, DIMS)
    values = codes * scales[:, :, None] + least[:, :, None]
    if USED * DIMS != HEAD_DIM:
        # The last group's offset would stand in dimensions that the head does not have.
        dims = tl.arange(0, HEAD_DIM_PAD).reshape(1, GROUPS, DIMS)
        values = tl.where(dims < HEAD_DIM, values, 0.0)
    return values.reshape(ROWS, HEAD_DIM_PAD).to(dtype)
