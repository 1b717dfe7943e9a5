# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Turns queries and keys by their positions and scatters keys and values into the pool by slot.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.4.2; the
pairs are (i, i + HEAD_DIM / 2), as checkpoints in the Hugging Face layout have them. The pool is
paged as in PagedAttention (Kwon et al., "Efficient Memory Management for Large Language Model
Serving with PagedAttention", SOSP 2023, section 4.3); its layout is that of `cuda_kv`.

One launch for all of it, as each is shorter than the gap between two. A bias of the projection is
not added here: the matrix product adds it for nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.cuda_kv import LayerKV
from executor_service.kernels.kv_coding import store_rows
from executor_service.kernels.launch_config import num_warps, power_of_two, rows_per_program


@triton.jit(do_not_specialize=["num_rows"])
def rotary_kv_write_kernel(
    qk_ptr,  # [num_tokens, NUM_HEADS + NUM_KV_HEADS, HEAD_DIM] fp32/fp16/bf16, strided
    v_ptr,  # [num_tokens, NUM_KV_HEADS, HEAD_DIM] the same dtype, strided
    cos_ptr,  # [num_tokens, HEAD_DIM / 2] fp32, dense
    sin_ptr,  # [num_tokens, HEAD_DIM / 2] fp32, dense
    q_ptr,  # [num_tokens, NUM_HEADS, HEAD_DIM] dtype of qk, dense
    pool_ptr,  # [2, num_blocks, NUM_KV_HEADS, BLOCK_SIZE, elements] by CODING, one layer's
    scale_ptr,  # int8: [2, num_blocks, NUM_KV_HEADS, BLOCK_SIZE] fp32; int4: [..., groups, 2] fp16
    slots_ptr,  # [num_tokens] int64
    num_rows,
    first_value_row,
    qk_token_stride,
    qk_head_stride,
    v_token_stride,
    v_head_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    CODING: tl.constexpr,
):
    """Equals `reference.rotary`, then `reference.write_kv` of `reference.encode_kv`.

    Grid: (ceil(num_rows / ROWS),); a row is one head of one token, its queries first, then keys,
    then values, so a program holds several tokens. Masks: rows past the end, dimensions past
    HEAD_DIM. Computes in fp32; turned keys are rounded to the dtype of qk before they are encoded,
    as they would be if the two were separate operations.
    """
    TURNED: tl.constexpr = NUM_HEADS + NUM_KV_HEADS
    HALF: tl.constexpr = HEAD_DIM // 2
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens = (rows // (TURNED + NUM_KV_HEADS)).to(tl.int64)
    heads = rows % (TURNED + NUM_KV_HEADS)
    dims = tl.arange(0, HEAD_DIM_PAD)
    present = rows < num_rows
    inside = present[:, None] & (dims < HEAD_DIM)[None, :]
    turned = inside & (heads < TURNED)[:, None]

    in_first_half = dims < HALF
    partners = tl.where(in_first_half, dims + HALF, dims - HALF)
    qk_rows = (tokens * qk_token_stride + heads * qk_head_stride)[:, None]
    x = tl.load(qk_ptr + qk_rows + dims[None, :], mask=turned, other=0.0).to(tl.float32)
    partner = tl.load(qk_ptr + qk_rows + partners[None, :], mask=turned, other=0.0).to(tl.float32)
    angles = tokens[:, None] * HALF + tl.where(in_first_half, dims, dims - HALF)[None, :]
    cos = tl.load(cos_ptr + angles, mask=turned, other=0.0)
    sin = tl.load(sin_ptr + angles, mask=turned, other=0.0)
    sin = tl.where(in_first_half[None, :], -sin, sin)
    dtype = q_ptr.dtype.element_ty
    x = (x * cos + partner * sin).to(dtype)
    q_targets = (tokens * NUM_HEADS + heads) * HEAD_DIM
    is_query = inside & (heads < NUM_HEADS)[:, None]
    tl.store(q_ptr + q_targets[:, None] + dims[None, :], x, mask=is_query)

    is_value = heads >= TURNED
    v_rows = tokens * v_token_stride + (heads - TURNED) * v_head_stride
    v_mask = inside & is_value[:, None]
    values = tl.load(v_ptr + v_rows[:, None] + dims[None, :], mask=v_mask, other=0.0)
    stored = tl.where(is_value[:, None], values.to(tl.float32), x.to(tl.float32))
    # int64 from the slot on: a pool passes 2^31 elements at 4 GiB of fp16.
    slots = tl.load(slots_ptr + tokens, mask=present, other=0)
    kv_heads = (heads - NUM_HEADS) % NUM_KV_HEADS
    targets = (slots // BLOCK_SIZE * NUM_KV_HEADS + kv_heads) * BLOCK_SIZE + slots % BLOCK_SIZE
    targets += tl.where(is_value, first_value_row, 0)
    is_kept = present & (heads >= NUM_HEADS)
    store_rows(stored, pool_ptr, scale_ptr, targets, is_kept, HEAD_DIM, HEAD_DIM_PAD, CODING)


def rotary_kv_write(
    qk: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: LayerKV, slots: Tensor, coding: str
) -> Tensor:
    """qk: [T, H + K, D], v: [T, K, D], both dense in D; cos, sin: [T, D / 2] fp32, contiguous;
    slots: [T] int64 -> [T, H, D], the turned queries."""
    num_tokens, num_turned, head_dim = qk.shape
    num_kv_heads = v.shape[1]
    num_heads = num_turned - num_kv_heads
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qk.dtype, device=qk.device)
    num_rows = num_tokens * (num_turned + num_kv_heads)
    head_dim_pad = power_of_two(head_dim)
    rows = rows_per_program(head_dim_pad)
    rotary_kv_write_kernel[(triton.cdiv(num_rows, rows),)](
        qk,
        v,
        cos,
        sin,
        q,
        kv.keys,
        kv.key_scales,
        slots,
        num_rows,
        kv.num_rows,
        qk.stride(0),
        qk.stride(1),
        v.stride(0),
        v.stride(1),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=kv.block_size,
        HEAD_DIM=head_dim,
        HEAD_DIM_PAD=head_dim_pad,
        ROWS=rows,
        CODING=coding,
        num_warps=num_warps(rows * head_dim_pad),
    )
    return q
