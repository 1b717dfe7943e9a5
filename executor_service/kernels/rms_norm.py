# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Root-mean-square norm, alone or with the residual stream added first.

Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, section 3.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.launch_config import num_warps, power_of_two, rows_per_program


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_ptr,  # [num_tokens, NUM_HEADS, WIDTH] fp32/fp16/bf16, strided
    residual_ptr,  # [num_tokens * NUM_HEADS, WIDTH] fp32/fp16/bf16, dense, or None
    weight_ptr,  # [WIDTH] fp32/fp16/bf16
    out_ptr,  # [num_tokens * NUM_HEADS, WIDTH] dtype of x, dense
    num_rows,
    x_token_stride,
    x_head_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Equals `reference.rms_norm`, or with a residual `reference.add_rms_norm`.

    Grid: (ceil(num_tokens * NUM_HEADS / ROWS),); a row is what is normed, so no sum crosses rows.
    Masks: rows past the end, columns past WIDTH (zero, which adds nothing to the sum). Accumulates
    in fp32. The sum with the residual is rounded to the residual's dtype before it is normed, as
    it would be if the two were separate operations.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH_PAD)
    in_width = columns < WIDTH
    inside = (rows < num_rows)[:, None] & in_width[None, :]
    tokens = (rows // NUM_HEADS).to(tl.int64)
    x_rows = tokens * x_token_stride + (rows % NUM_HEADS) * x_head_stride
    dense = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]

    x = tl.load(x_ptr + x_rows[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + dense, mask=inside, other=0.0).to(tl.float32)
        total = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + dense, total, mask=inside)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / WIDTH + eps)
    weight = tl.load(weight_ptr + columns, mask=in_width, other=0.0).to(tl.float32)
    normed = (x * scale[:, None]).to(out_ptr.dtype.element_ty).to(tl.float32) * weight[None, :]
    tl.store(out_ptr + dense, normed.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: [T, width] or [T, heads, width], dense in the last dimension -> the same, contiguous."""
    return _launch(x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds x to `residual` in place; both [T, width], `residual` contiguous. The sum's norm."""
    return _launch(x, residual, weight, eps)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = x.shape[-1]
    num_heads = x.shape[1] if x.dim() == 3 else 1
    num_rows = x.shape[0] * num_heads
    width_pad = power_of_two(width)
    rows = rows_per_program(width_pad)
    rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x,
        residual,
        weight,
        out,
        num_rows,
        x.stride(0),
        x.stride(1) if x.dim() == 3 else 0,
        eps,
        NUM_HEADS=num_heads,
        WIDTH=width,
        WIDTH_PAD=width_pad,
        ROWS=rows,
        num_warps=num_warps(rows * width_pad),
    )
    return out
