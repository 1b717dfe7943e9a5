# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""One layer's attention of a step that mixes chunks of prompts and single tokens, in one launch.

A step is a list of work items, whatever sequence each is of, as in FlashInfer (Ye et al., MLSys
2025): each item is a tile of a prompt (`prompt_tile`) or a share of the splits of one decode's
context (`decode_splits`), and `merge_splits` then joins the splits. A launch of both kinds has the
registers and shared memory of the larger one.

Compiled for sm_90 with heads of 128 in bfloat16, two programs of it fit on a multiprocessor where
three of decodes alone do. How fast that is beside a launch for each kind is unmeasured, as is all
of it, on any GPU; `make bench-gpu` compares the two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.attention_tile import score_factor
from executor_service.kernels.cuda_kv import LayerKV
from executor_service.kernels.cuda_step import CudaStep
from executor_service.kernels.decode_splits import attend_decode_splits
from executor_service.kernels.launch_config import AttentionConfig
from executor_service.kernels.merge_splits import Splits, allocate_splits, merge_splits
from executor_service.kernels.prompt_tile import attend_prompt_tile


@triton.jit(do_not_specialize=["table_stride", "num_tiles", "num_decodes", "num_shares"])
def attention_kernel(
    q_ptr,  # [num_tokens, NUM_KV_HEADS * GROUP, HEAD_DIM] fp32/fp16/bf16, dense in HEAD_DIM
    k_pool_ptr,  # [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, elements] by CODING, one layer's
    v_pool_ptr,  # the same
    k_scale_ptr,  # int8: [num_blocks, NUM_KV_HEADS, BLOCK_SIZE] fp32; int4: [..., groups, 2] fp16
    v_scale_ptr,  # the same; others: None
    out_ptr,  # [num_tokens, NUM_KV_HEADS * GROUP, HEAD_DIM] dtype of q, dense
    partial_ptr,  # [num_decodes, NUM_KV_HEADS * GROUP, MAX_SPLITS, HEAD_DIM] fp32, each split's
    weight_ptr,  # [num_decodes, NUM_KV_HEADS * GROUP, MAX_SPLITS] fp32, log2 of its softmax sum
    first_rows_ptr,  # [num_chunks] int32, each chunk's first row of q
    starts_ptr,  # [num_chunks] int32, position of that row
    lengths_ptr,  # [num_chunks] int32
    tables_ptr,  # [num_chunks, table_stride] int32
    tile_chunks_ptr,  # [num_tiles] int32, the chunk a tile is cut from
    tile_firsts_ptr,  # [num_tiles] int32, its first token within the chunk
    decodes_ptr,  # [num_decodes] int32, the chunks of one token
    table_stride,
    q_token_stride,
    q_head_stride,
    scale,
    num_tiles,
    num_decodes,
    num_shares,  # items of one decode
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    PROMPT_ROWS: tl.constexpr,
    PROMPT_SLOTS: tl.constexpr,
    DECODE_ROWS: tl.constexpr,
    DECODE_SLOTS: tl.constexpr,
    SPLIT_SLOTS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    CODING: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WORK: tl.constexpr,
):
    """With `merge_splits_kernel`, equals `reference.attention`.

    Grid: (items * NUM_KV_HEADS,), an item's heads side by side. The first num_tiles items are
    tiles of prompts, as they take longest; behind them are num_shares * num_decodes of decodes.
    WORK: "prompts", "decodes" or "mixed", what items there may be. A launch of one kind alone is
    compiled without the other, whose registers and shared memory would keep programs off a
    multiprocessor; each kind runs the same code on the same tiles in both, so to the same bits.
    """
    item = tl.program_id(0) // NUM_KV_HEADS
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    # Two conditions, as the compiler leaves a branch out by the first alone.
    if WORK != "decodes":  # noqa: SIM102
        if item < num_tiles:
            attend_prompt_tile(
                q_ptr,
                k_pool_ptr,
                v_pool_ptr,
                k_scale_ptr,
                v_scale_ptr,
                out_ptr,
                first_rows_ptr,
                starts_ptr,
                lengths_ptr,
                tables_ptr,
                tl.load(tile_chunks_ptr + item),
                tl.load(tile_firsts_ptr + item),
                kv_head,
                table_stride,
                q_token_stride,
                q_head_stride,
                scale,
                NUM_KV_HEADS,
                GROUP,
                BLOCK_SIZE,
                HEAD_DIM,
                HEAD_DIM_PAD,
                PROMPT_ROWS,
                PROMPT_SLOTS,
                CODING,
                WINDOW,
                SOFT_CAP,
            )
    if WORK != "prompts":  # noqa: SIM102
        if item >= num_tiles:
            attend_decode_splits(
                q_ptr,
                k_pool_ptr,
                v_pool_ptr,
                k_scale_ptr,
                v_scale_ptr,
                partial_ptr,
                weight_ptr,
                first_rows_ptr,
                starts_ptr,
                tables_ptr,
                decodes_ptr,
                (item - num_tiles) % num_decodes,
                (item - num_tiles) // num_decodes,
                num_shares,
                kv_head,
                table_stride,
                q_token_stride,
                q_head_stride,
                scale,
                NUM_KV_HEADS,
                GROUP,
                BLOCK_SIZE,
                HEAD_DIM,
                HEAD_DIM_PAD,
                DECODE_ROWS,
                DECODE_SLOTS,
                SPLIT_SLOTS,
                MAX_SPLITS,
                CODING,
                WINDOW,
                SOFT_CAP,
            )


def attention(
    q: Tensor, kv: LayerKV, scale: float, step: CudaStep, config: AttentionConfig
) -> Tensor:
    """Attention of every row of a step. q: [T, H, D], dense in D; returns the same, contiguous."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decodes = step.decodes
    if decodes is None:
        _launch(q, kv, scale, step, config, out, None)
        return out
    splits = allocate_splits(decodes.chunks.shape[0], config, q.device)
    _launch(q, kv, scale, step, config, out, splits)
    merge_splits(splits, step.chunks, decodes, config, out)
    return out


def _launch(
    q: Tensor,
    kv: LayerKV,
    scale: float,
    step: CudaStep,
    config: AttentionConfig,
    out: Tensor,
    splits: Splits | None,
) -> None:
    """Writes the rows of tiles to `out`, those of decodes to `splits`."""
    shape, chunks, tiles, decodes = config.shape, step.chunks, step.tiles, step.decodes
    num_tiles = 0 if tiles is None else tiles.chunks.shape[0]
    num_decodes = 0 if decodes is None else decodes.chunks.shape[0]
    num_shares = 0 if decodes is None else decodes.num_programs
    attention_kernel[((num_tiles + num_shares * num_decodes) * shape.num_kv_heads,)](
        q,
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        out,
        None if splits is None else splits.partial,
        None if splits is None else splits.weights,
        chunks.first_rows,
        chunks.starts,
        chunks.lengths,
        chunks.tables,
        None if tiles is None else tiles.chunks,
        None if tiles is None else tiles.firsts,
        None if decodes is None else decodes.chunks,
        chunks.tables.stride(0),
        q.stride(0),
        q.stride(1),
        score_factor(scale, shape.soft_cap),
        num_tiles,
        num_decodes,
        num_shares,
        NUM_KV_HEADS=shape.num_kv_heads,
        GROUP=shape.group_size,
        BLOCK_SIZE=kv.block_size,
        HEAD_DIM=shape.head_dim,
        HEAD_DIM_PAD=config.head_dim_pad,
        PROMPT_ROWS=config.prompt.rows,
        PROMPT_SLOTS=config.prompt.slots,
        DECODE_ROWS=config.decode.rows,
        DECODE_SLOTS=config.decode.slots,
        SPLIT_SLOTS=config.split_slots,
        MAX_SPLITS=config.max_splits,
        CODING=config.coding,
        WINDOW=shape.window,
        SOFT_CAP=shape.soft_cap,
        WORK=_work(step),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def _work(step: CudaStep) -> str:
    if step.tiles is None:
        return "decodes"
    return "prompts" if step.decodes is None else "mixed"
