# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of a single token over its own paged context, a device function for a share of it.

The context is split so that few rows fill a chip: Flash-Decoding (Dao, Haziza, Massa, Sizov,
"Flash-Decoding for long-context inference", 2023), which is FlashAttention-2's softmax (Dao, 2023,
section 3.1) over parts; the paging is PagedAttention's (Kwon et al., SOSP 2023, section 4.1). The
query heads of a KV head are the rows of one matrix product (Ainslie et al., "GQA", 2023, section
2.2).
"""

from __future__ import annotations

import triton
import triton.language as tl

from executor_service.kernels.attention_tile import attend_tile


@triton.jit
def attend_decode_splits(
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
    decode,
    share,
    num_shares,
    kv_head,
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
    SPLIT_SLOTS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    CODING: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    """The splits `share`, share + num_shares, ... of one KV head's query heads of a decode.

    A split covers SPLIT_SLOTS slots whatever the batch, so num_shares is a matter of speed alone.
    With a WINDOW the first split is that of its first slot; SPLIT_SLOTS is a multiple of SLOTS.
    Masks: rows past GROUP, dimensions past HEAD_DIM, slots past the sequence's end. Accumulates in
    fp32; weights are rounded to the dtype of q for the second product.
    """
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
    for split in range(first_split + share, num_splits, num_shares):
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
