# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of single tokens, each over its own paged context, split so that few rows fill a chip.

Splits and their merge are those of Flash-Decoding (Dao, Haziza, Massa, Sizov, "Flash-Decoding for
long-context inference", 2023), which are FlashAttention-2's softmax (Dao, 2023, section 3.1) over
parts; the paging is PagedAttention's (Kwon et al., SOSP 2023, section 4.1). The query heads of a
KV head are the rows of one matrix product (Ainslie et al., "GQA", 2023, section 2.2).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.attention_tile import attend_tile, score_factor
from executor_service.kernels.cuda_kv import LayerKV
from executor_service.kernels.cuda_step import ChunkColumns, DecodeRows
from executor_service.kernels.launch_config import AttentionConfig


@triton.jit(do_not_specialize=["table_stride"])
def split_attention_kernel(
    q_ptr,  # [num_tokens, NUM_KV_HEADS * GROUP, HEAD_DIM] fp32/fp16/bf16, dense in HEAD_DIM
    k_pool_ptr,  # [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, elements] by CODING, one layer's
    v_pool_ptr,  # the same
    k_scale_ptr,  # int8: [num_blocks, NUM_KV_HEADS, BLOCK_SIZE] fp32; int4: [..., groups, 2] fp16
    v_scale_ptr,  # the same; others: None
    partial_ptr,  # [num_decodes, NUM_KV_HEADS * GROUP, MAX_SPLITS, HEAD_DIM] fp32, each split's
    weight_ptr,  # [num_decodes, NUM_KV_HEADS * GROUP, MAX_SPLITS] fp32, log2 of its softmax sum
    first_rows_ptr,  # [num_chunks] int32, each chunk's row of q
    starts_ptr,  # [num_chunks] int32, position of that row
    tables_ptr,  # [num_chunks, table_stride] int32
    decodes_ptr,  # [num_decodes] int32, the chunks of one token
    table_stride,
    q_token_stride,
    q_head_stride,
    scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    CODING: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SPLIT_SLOTS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """With `merge_splits_kernel`, equals `reference.attention` for chunks of one token.

    Grid: (num_decodes, NUM_KV_HEADS, any). The programs along the last axis take splits in turn,
    so their number is a matter of speed alone: a split covers SPLIT_SLOTS slots whatever the batch.
    With a WINDOW the first split is that of its first slot; SPLIT_SLOTS is a multiple of SLOTS.
    Masks: rows past GROUP, dimensions past HEAD_DIM, slots past the sequence's end. Accumulates in
    fp32; weights are rounded to the dtype of q for the second product.
    """
    decode = tl.program_id(0)
    kv_head = tl.program_id(1)
    chunk = tl.load(decodes_ptr + decode)
    last_slot = tl.load(starts_ptr + chunk)
    q_row = tl.load(first_rows_ptr + chunk).to(tl.int64)
    table_ptr = tables_ptr + chunk.to(tl.int64) * table_stride

    rows = tl.arange(0, ROWS)
    heads = kv_head * GROUP + rows
    dims = tl.arange(0, HEAD_DIM_PAD)
    inside = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_offsets = q_row * q_token_stride + heads * q_head_stride
    query = tl.load(q_ptr + q_offsets[:, None] + dims[None, :], mask=inside, other=0.0)
    last_slots = tl.zeros([ROWS], tl.int32) + last_slot

    num_splits = last_slot // SPLIT_SLOTS + 1
    first_slot = last_slot * 0
    if WINDOW is not None:
        first_slot = tl.maximum(last_slot - WINDOW + 1, 0) // SLOTS * SLOTS
    first_split = first_slot // SPLIT_SLOTS
    for split in range(first_split + tl.program_id(2), num_splits, tl.num_programs(2)):
        first = tl.maximum(split * SPLIT_SLOTS, first_slot)
        end = tl.minimum(first + SPLIT_SLOTS, last_slot + 1)
        largest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, HEAD_DIM_PAD], tl.float32)
        for slot in range(first, end, SLOTS):
            largest, total, mixed = attend_tile(
                query,
                largest,
                total,
                mixed,
                k_pool_ptr,
                v_pool_ptr,
                k_scale_ptr,
                v_scale_ptr,
                table_ptr,
                kv_head,
                slot + tl.arange(0, SLOTS),
                last_slots,
                end,
                scale,
                NUM_KV_HEADS,
                BLOCK_SIZE,
                HEAD_DIM,
                HEAD_DIM_PAD,
                CODING,
                WINDOW,
                SOFT_CAP,
                MASKED=True,
            )
        places = (decode.to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads) * MAX_SPLITS
        places += split - first_split
        tl.store(weight_ptr + places, largest + tl.log2(total), mask=rows < GROUP)
        offsets = places[:, None] * HEAD_DIM + dims[None, :]
        tl.store(partial_ptr + offsets, mixed / total[:, None], mask=inside)


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
    """Weighs the splits of one row together, in fp32; see `split_attention_kernel`.

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


def paged_attention(
    q: Tensor,
    kv: LayerKV,
    scale: float,
    chunks: ChunkColumns,
    decodes: DecodeRows,
    config: AttentionConfig,
    out: Tensor,
) -> None:
    """Writes the rows of the chunks of one token. q: [T, H, D], out: the same, contiguous."""
    shape, tile = config.shape, config.decode
    count = decodes.chunks.shape[0]
    weights = torch.empty(
        count, shape.num_heads, config.max_splits, dtype=torch.float32, device=q.device
    )
    partial = torch.empty(*weights.shape, shape.head_dim, dtype=torch.float32, device=q.device)
    split_attention_kernel[(count, shape.num_kv_heads, decodes.num_programs)](
        q,
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        partial,
        weights,
        chunks.first_rows,
        chunks.starts,
        chunks.tables,
        decodes.chunks,
        chunks.tables.stride(0),
        q.stride(0),
        q.stride(1),
        score_factor(scale, shape.soft_cap),
        NUM_KV_HEADS=shape.num_kv_heads,
        GROUP=shape.group_size,
        BLOCK_SIZE=kv.block_size,
        HEAD_DIM=shape.head_dim,
        HEAD_DIM_PAD=config.head_dim_pad,
        ROWS=tile.rows,
        SLOTS=tile.slots,
        CODING=config.coding,
        WINDOW=shape.window,
        SOFT_CAP=shape.soft_cap,
        SPLIT_SLOTS=config.split_slots,
        MAX_SPLITS=config.max_splits,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    merge_splits_kernel[(count, shape.num_heads)](
        partial,
        weights,
        out,
        chunks.first_rows,
        chunks.starts,
        decodes.chunks,
        NUM_HEADS=shape.num_heads,
        HEAD_DIM=shape.head_dim,
        HEAD_DIM_PAD=config.head_dim_pad,
        SPLIT_SLOTS=config.split_slots,
        MAX_SPLITS=config.max_splits,
        WINDOW=shape.window,
        num_warps=8 if config.head_dim_pad > 128 else 4,
    )
