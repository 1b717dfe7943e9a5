# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The gated activation of the feed-forward part.

Shazeer, "GLU Variants Improve Transformer", 2020, section 2 (SwiGLU).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.launch_config import num_warps, power_of_two, rows_per_program

_MAX_COLUMNS = 2048


@triton.jit(do_not_specialize=["num_tokens"])
def silu_mul_kernel(
    gate_up_ptr,  # [num_tokens, 2 * WIDTH] fp32/fp16/bf16, dense
    out_ptr,  # [num_tokens, WIDTH] the same dtype, dense
    num_tokens,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Equals `reference.silu_mul`.

    Grid: (ceil(num_tokens / ROWS), ceil(WIDTH / COLUMNS)). Masks: tokens past the end, columns
    past WIDTH. Computes in fp32.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < num_tokens)[:, None] & (columns < WIDTH)[None, :]
    rows = rows.to(tl.int64)
    sources = rows[:, None] * (2 * WIDTH) + columns[None, :]
    gate = tl.load(gate_up_ptr + sources, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + sources + WIDTH, mask=inside, other=0.0).to(tl.float32)
    mixed = gate * tl.sigmoid(gate) * up
    targets = rows[:, None] * WIDTH + columns[None, :]
    tl.store(out_ptr + targets, mixed.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 * width], contiguous -> [T, width]"""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    columns = min(_MAX_COLUMNS, power_of_two(width))
    rows = rows_per_program(columns)
    silu_mul_kernel[(triton.cdiv(num_tokens, rows), triton.cdiv(width, columns))](
        gate_up,
        out,
        num_tokens,
        WIDTH=width,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=num_warps(rows * columns),
    )
    return out
