# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Joins what the splits of a decode's context came to (Dao et al., "Flash-Decoding", 2023)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.cuda_step import ChunkColumns, DecodeRows
from executor_service.kernels.launch_config import AttentionConfig


class Splits(NamedTuple):
    """What `attention_kernel` leaves of each split for `merge_splits`."""

    partial: Tensor
    """[num_decodes, num_heads, max_splits, head_dim] float32"""
    weights: Tensor
    """[num_decodes, num_heads, max_splits] float32, log2 of the split's softmax sum"""


def allocate_splits(num_decodes: int, config: AttentionConfig, device: torch.device) -> Splits:
    """Splits that a sequence does not have are left as memory was."""
    shape = (num_decodes, config.shape.num_heads, config.max_splits)
    return Splits(
        partial=torch.empty(*shape, config.shape.head_dim, dtype=torch.float32, device=device),
        weights=torch.empty(shape, dtype=torch.float32, device=device),
    )


@triton.jit
def merge_splits_kernel(
    partial_ptr,  # [num_decodes, NUM_HEADS, MAX_SPLITS, HEAD_DIM] fp32
    weight_ptr,  # [num_decodes, NUM_HEADS, MAX_SPLITS] fp32
    out_ptr,  # [num_tokens, NUM_HEADS, HEAD_DIM] fp32/fp16/bf16, dense
    first_rows_ptr,  # [num_chunks] int32, each chunk's row of out
    starts_ptr,  # [num_chunks] int32, position of that row
    decodes_ptr,  # [num_decodes] int32, the chunks of one token
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    SPLIT_SLOTS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Weighs the splits of one row together, in fp32; see `attend_decode_splits`.

    Grid: (num_decodes, NUM_HEADS). Masks: splits the sequence does not have, which are never read;
    dimensions past HEAD_DIM.
    """
    decode = tl.program_id(0)
    head = tl.program_id(1)
    chunk = tl.load(decodes_ptr + decode)
    last_slot = tl.load(starts_ptr + chunk)
    num_splits = last_slot // SPLIT_SLOTS + 1
    if WINDOW is not None:
        num_splits -= tl.maximum(last_slot - WINDOW + 1, 0) // SPLIT_SLOTS
    splits = tl.arange(0, MAX_SPLITS)
    dims = tl.arange(0, HEAD_DIM_PAD)
    in_head = dims < HEAD_DIM
    places = (decode.to(tl.int64) * NUM_HEADS + head) * MAX_SPLITS + splits

    logs = tl.load(weight_ptr + places, mask=splits < num_splits, other=float("-inf"))
    weights = tl.exp2(logs - tl.max(logs, axis=0))
    weights = weights / tl.sum(weights, axis=0)
    offsets = places[:, None] * HEAD_DIM + dims[None, :]
    there = (splits < num_splits)[:, None] & in_head[None, :]
    parts = tl.load(partial_ptr + offsets, mask=there, other=0.0)
    mixed = tl.sum(parts * weights[:, None], axis=0)
    row = tl.load(first_rows_ptr + chunk).to(tl.int64)
    target = (row * NUM_HEADS + head) * HEAD_DIM
    tl.store(out_ptr + target + dims, mixed.to(out_ptr.dtype.element_ty), mask=in_head)


def merge_splits(
    splits: Splits,
    chunks: ChunkColumns,
    decodes: DecodeRows,
    config: AttentionConfig,
    out: Tensor,
) -> None:
    """Writes the rows of the decodes. out: [T, H, D], contiguous."""
    merge_splits_kernel[(decodes.chunks.shape[0], config.shape.num_heads)](
        splits.partial,
        splits.weights,
        out,
        chunks.first_rows,
        chunks.starts,
        decodes.chunks,
        NUM_HEADS=config.shape.num_heads,
        HEAD_DIM=config.shape.head_dim,
        HEAD_DIM_PAD=config.head_dim_pad,
        SPLIT_SLOTS=config.split_slots,
        MAX_SPLITS=config.max_splits,
        WINDOW=config.shape.window,
        num_warps=8 if config.head_dim_pad > 128 else 4,
    )
