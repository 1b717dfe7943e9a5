# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Scatters new keys and values into the pool by slot.

The pool is paged as in PagedAttention (Kwon et al., "Efficient Memory Management for Large Language
Model Serving with PagedAttention", SOSP 2023, section 4.3); its layout is that of `cuda_kv`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.cuda_kv import LayerKV
from executor_service.kernels.kv_coding import store_rows
from executor_service.kernels.launch_config import num_warps, power_of_two, rows_per_program


@triton.jit(do_not_specialize=["num_rows"])
def kv_write_kernel(
    k_ptr,  # [num_tokens, NUM_HEADS, HEAD_DIM] fp32/fp16/bf16, strided
    v_ptr,  # the same
    k_pool_ptr,  # [num_blocks, NUM_HEADS, BLOCK_SIZE, elements] by CODING, one layer's keys
    v_pool_ptr,  # the same, its values
    k_scale_ptr,  # int8: [num_blocks, NUM_HEADS, BLOCK_SIZE] fp32; int4: [..., groups, 2] fp16
    v_scale_ptr,  # the same; others: None
    slots_ptr,  # [num_tokens] int64
    num_rows,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    NUM_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    CODING: tl.constexpr,
):
    """Equals `reference.write_kv` of `reference.encode_kv`.

    Grid: (ceil(num_tokens * NUM_HEADS / ROWS),); a row is one head of one token, so a program holds
    several tokens. Masks: rows past the end, dimensions past HEAD_DIM. Nothing is accumulated
    but a row's largest magnitude or a group's range, in fp32.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens = rows // NUM_HEADS
    heads = rows % NUM_HEADS
    dims = tl.arange(0, HEAD_DIM_PAD)
    present = rows < num_rows
    inside = present[:, None] & (dims < HEAD_DIM)[None, :]

    # int64 from the slot on: a pool passes 2^31 elements at 4 GiB of fp16.
    slots = tl.load(slots_ptr + tokens, mask=present, other=0)
    blocks = slots // BLOCK_SIZE
    targets = (blocks * NUM_HEADS + heads) * BLOCK_SIZE + slots % BLOCK_SIZE

    tokens = tokens.to(tl.int64)
    k_offsets = (tokens * k_token_stride + heads * k_head_stride)[:, None] + dims[None, :]
    v_offsets = (tokens * v_token_stride + heads * v_head_stride)[:, None] + dims[None, :]
    keys = tl.load(k_ptr + k_offsets, mask=inside, other=0.0).to(tl.float32)
    values = tl.load(v_ptr + v_offsets, mask=inside, other=0.0).to(tl.float32)
    store_rows(keys, k_pool_ptr, k_scale_ptr, targets, present, HEAD_DIM, HEAD_DIM_PAD, CODING)
    store_rows(values, v_pool_ptr, v_scale_ptr, targets, present, HEAD_DIM, HEAD_DIM_PAD, CODING)


def write_kv(k: Tensor, v: Tensor, kv: LayerKV, slots: Tensor, coding: str) -> None:
    """k, v: [T, K, D], dense in D; slots: [T] int64."""
    num_heads, head_dim = k.shape[1:]
    num_rows = k.shape[0] * num_heads
    head_dim_pad = power_of_two(head_dim)
    rows = rows_per_program(head_dim_pad)
    kv_write_kernel[(triton.cdiv(num_rows, rows),)](
        k,
        v,
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        slots,
        num_rows,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        NUM_HEADS=num_heads,
        BLOCK_SIZE=kv.block_size,
        HEAD_DIM=head_dim,
        HEAD_DIM_PAD=head_dim_pad,
        ROWS=rows,
        CODING=coding,
        num_warps=num_warps(rows * head_dim_pad),
    )
