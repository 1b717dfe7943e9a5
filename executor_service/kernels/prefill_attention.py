# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Causal attention of chunks of several tokens over paged context.

FlashAttention-2 (Dao, 2023, sections 3.1 and 3.2) with the keys and values found through a block
table (Kwon et al., PagedAttention, SOSP 2023, section 4.1). A tile's rows are query tokens times
the query heads of one KV head, so what is read from the pool serves all of them (Ainslie et al.,
"GQA", 2023, section 2.2).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.attention_tile import attend_tile, score_factor
from executor_service.kernels.cuda_kv import LayerKV
from executor_service.kernels.cuda_step import ChunkColumns, PrefillTiles
from executor_service.kernels.launch_config import AttentionConfig


@triton.jit(do_not_specialize=["table_stride"])
def prefill_attention_kernel(
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
    tile_chunks_ptr,  # [num_tiles] int32, the chunk a tile is cut from
    tile_firsts_ptr,  # [num_tiles] int32, its first token within the chunk
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
    TOKENS: tl.constexpr,
    SLOTS: tl.constexpr,
    CODING: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    """Equals `reference.attention` for the rows of the tiles.

    Grid: (num_tiles, NUM_KV_HEADS). Row r of a tile is query head r % GROUP of token r // GROUP;
    ROWS // GROUP = TOKENS. Masks: rows past TOKENS * GROUP or the chunk's end, dimensions past
    HEAD_DIM, slots past the chunk's end, and the causal one, which only the tiles of slots at the
    diagonal need, or with a WINDOW all. Scores, softmax and output accumulate in fp32; weights are
    rounded to the dtype of q for the second product. Slots are cut at multiples of SLOTS
    from position 0, so a row's result does not depend on how its prompt was cut into chunks.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    chunk = tl.load(tile_chunks_ptr + tile)
    first_token = tl.load(tile_firsts_ptr + tile)
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


def prefill_attention(
    q: Tensor,
    kv: LayerKV,
    scale: float,
    chunks: ChunkColumns,
    tiles: PrefillTiles,
    config: AttentionConfig,
    out: Tensor,
) -> None:
    """Writes the rows of the tiles' chunks to `out`. q: [T, H, D], out: the same, contiguous."""
    shape, tile = config.shape, config.prefill
    prefill_attention_kernel[(tiles.chunks.shape[0], shape.num_kv_heads)](
        q,
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        out,
        chunks.first_rows,
        chunks.starts,
        chunks.lengths,
        chunks.tables,
        tiles.chunks,
        tiles.firsts,
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
        TOKENS=config.tile_tokens,
        SLOTS=tile.slots,
        CODING=config.coding,
        WINDOW=shape.window,
        SOFT_CAP=shape.soft_cap,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
