# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Turns pairs of dimensions by angles that grow with the position.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.4.2; the
pairs are (i, i + HEAD_DIM / 2), as checkpoints in the Hugging Face layout have them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.launch_config import num_warps, power_of_two, rows_per_program


@triton.jit(do_not_specialize=["num_rows"])
def rotary_kernel(
    x_ptr,  # [num_tokens, NUM_HEADS, 2 * HALF] fp32/fp16/bf16, strided
    cos_ptr,  # [num_tokens, HALF] fp32, dense
    sin_ptr,  # [num_tokens, HALF] fp32, dense
    out_ptr,  # [num_tokens, NUM_HEADS, 2 * HALF] dtype of x, dense
    num_rows,
    x_token_stride,
    x_head_stride,
    NUM_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Equals `reference.rotary`.

    Grid: (ceil(num_tokens * NUM_HEADS / ROWS),); a row is one head of one token. Masks: rows past
    the end, dimensions past HALF. Computes in fp32.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, HALF_PAD)
    inside = (rows < num_rows)[:, None] & (dims < HALF)[None, :]
    tokens = (rows // NUM_HEADS).to(tl.int64)
    sources = (tokens * x_token_stride + (rows % NUM_HEADS) * x_head_stride)[:, None] + dims[
        None, :
    ]
    angles = tokens[:, None] * HALF + dims[None, :]
    targets = rows.to(tl.int64)[:, None] * (2 * HALF) + dims[None, :]

    cos = tl.load(cos_ptr + angles, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + angles, mask=inside, other=0.0)
    first = tl.load(x_ptr + sources, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + sources + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + targets, (first * cos - second * sin).to(dtype), mask=inside)
    tl.store(out_ptr + targets + HALF, (second * cos + first * sin).to(dtype), mask=inside)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [T, heads, D], dense in D; cos, sin: [T, D / 2] fp32, contiguous -> [T, heads, D]."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_tokens, num_heads, head_dim = x.shape
    half_pad = power_of_two(head_dim // 2)
    rows = rows_per_program(half_pad)
    rotary_kernel[(triton.cdiv(num_tokens * num_heads, rows),)](
        x,
        cos,
        sin,
        out,
        num_tokens * num_heads,
        x.stride(0),
        x.stride(1),
        NUM_HEADS=num_heads,
        HALF=head_dim // 2,
        HALF_PAD=half_pad,
        ROWS=rows,
        num_warps=num_warps(rows * half_pad),
    )
    return out
