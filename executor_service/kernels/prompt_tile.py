# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Causal attention of one tile of a chunk over paged context, a device function.

FlashAttention-2 (Dao, 2023, sections 3.1 and 3.2) with the keys and values found through a block
table (Kwon et al., PagedAttention, SOSP 2023, section 4.1). A tile's rows are query tokens times
the query heads of one KV head, so what is read from the pool serves all of them (Ainslie et al.,
"GQA", 2023, section 2.2).
"""

from __future__ import annotations

import triton
import triton.language as tl

from executor_service.kernels.attention_tile import attend_tile


@triton.jit
def attend_prompt_tile(
    q_ptr,  # [num_tokens, NUM_KV_HEADS * GROUP, HEAD_DIM] fp32/fp16/bf16, dense in HEAD_DIM
    k_pool_ptr,  # [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, elements] by CODING, one layer's
    v_pool_ptr,  # the same
    k_scale_ptr,  # int8: [num_blocks, NUM_KV_HEADS, BLOCK_SIZE] fp32; int4: [..., groups, 2] fp16
    v_scale_ptr,  # the same; others: None
    out_ptr,  # [num_tokens, NUM_KV_HEADS * GROUP, HEAD_DIM] dtype of q, dense
    first_rows_ptr,  # [num_chunks] int32, each chunk's first row of q
    starts_ptr,  # [num_chunks] int32, position of that row
    lengths_ptr,  # [num_chunks] int32
    tables_ptr,  # [num_chunks, table_stride] int32
    chunk,  # the tile's
    first_token,  # of the tile, within the chunk
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
    CODING: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    """Equals `reference.attention` for the tile's rows of one KV head's query heads.

    Row r is query head r % GROUP of token r // GROUP, of ROWS // GROUP tokens. Masks: rows past
    those or the chunk's end, dimensions past HEAD_DIM, slots past the chunk's end, and the causal
    one, which only the tiles of slots at the diagonal need, or with a WINDOW all. Scores, softmax
    and output accumulate in fp32; weights are rounded to the dtype of q for the second product.
    Slots are cut at multiples of SLOTS from position 0, so a row's result does not depend on how
    its prompt was cut into chunks.
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    start = tl.load(starts_ptr + chunk)
    length = tl.load(lengths_ptr + chunk)
    q_row = tl.load(first_rows_ptr + chunk).to(tl.int64)
    table_ptr = tables_ptr + chunk.to(tl.int64) * table_stride

    rows = tl.arange(0, ROWS)
    tokens = first_token + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, HEAD_DIM_PAD)
    inside = (rows < TOKENS * GROUP) & (tokens < length)
    inside = inside[:, None] & (dims < HEAD_DIM)[None, :]
    q_offsets = (q_row + tokens) * q_token_stride + heads * q_head_stride
    query = tl.load(q_ptr + q_offsets[:, None] + dims[None, :], mask=inside, other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HEAD_DIM_PAD], tl.float32)
    end = start + tl.minimum(first_token + TOKENS, length)
    # Rows that only fill up see what the last one sees: none is without a slot.
    positions = tl.minimum(start + tokens, end - 1)
    first_slot = start * 0
    seen_by_all = (start + first_token + 1) // SLOTS * SLOTS
    if WINDOW is not None:
        # Its edge runs through most tiles, so all are masked.
        first_slot = tl.maximum(start + first_token - WINDOW + 1, 0) // SLOTS * SLOTS
        seen_by_all = first_slot
    for slot in range(first_slot, seen_by_all, SLOTS):
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
            positions,
            end,
            scale,
            NUM_KV_HEADS,
            BLOCK_SIZE,
            HEAD_DIM,
            HEAD_DIM_PAD,
            CODING,
            WINDOW,
            SOFT_CAP,
            MASKED=False,
        )
    for slot in range(seen_by_all, end, SLOTS):
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
            positions,
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
    out_offsets = ((q_row + tokens) * (NUM_KV_HEADS * GROUP) + heads) * HEAD_DIM
    mixed = mixed / total[:, None]
    tl.store(
        out_ptr + out_offsets[:, None] + dims[None, :],
        mixed.to(out_ptr.dtype.element_ty),
        mask=inside,
    )
