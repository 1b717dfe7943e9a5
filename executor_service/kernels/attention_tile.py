# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""One step of a running softmax: a tile of queries meets a tile of paged keys and values.

The softmax is that of FlashAttention-2 (Dao, "FlashAttention-2: Faster Attention with Better
Parallelism and Work Partitioning", 2023, section 3.1): the sum is divided out at the end, and
exponents are taken to base 2, so scores come scaled by log2(e). A soft cap is that of Gemma 2
(Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024, section 2), a
window that of Mistral 7B (Jiang et al., 2023, section 2).
"""

from __future__ import annotations

import triton
import triton.language as tl

from executor_service.kernels.kv_coding import decoded, load_int4

LOG2_E = tl.constexpr(1.4426950408889634)
_LARGEST_EXPONENT = tl.constexpr(60.0)


def score_factor(scale: float, soft_cap: float | None) -> float:
    """What `attend_tile` multiplies the product of query and key by."""
    return scale * LOG2_E.value if soft_cap is None else scale / soft_cap


@triton.jit
def attend_tile(
    query,  # [ROWS, HEAD_DIM_PAD] fp32/fp16/bf16
    largest,  # [ROWS] fp32, the largest score so far
    total,  # [ROWS] fp32, sum of exp2(score - largest) so far
    mixed,  # [ROWS, HEAD_DIM_PAD] fp32, sum of exp2(score - largest) * value so far
    k_pool_ptr,  # [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, elements] by CODING, see `kv_coding`
    v_pool_ptr,  # the same
    k_scale_ptr,  # int8: [num_blocks, NUM_KV_HEADS, BLOCK_SIZE] fp32; int4: [..., groups, 2] fp16
    v_scale_ptr,  # the same; others: None
    table_ptr,  # int32, the sequence's block ids
    kv_head,
    slots,  # [SLOTS] int32, of the sequence
    last_slots,  # [ROWS] int32, the last slot each row may see
    end,
    scale,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    CODING: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Returns (largest, total, mixed) with the tile joined in.

    Unless MASKED, all slots lie before `end` and every row sees them. With it, each row must see
    the first of them, or there is a WINDOW: so many slots up to its last are what a row sees, None
    for all. What a row may not see is never read from the pool if it lies at or behind
    `end`, so what earlier owners left in a block cannot reach a sum. Accumulates in fp32.
    The scale of an int8 key multiplies its score; that of a value its weight, or where an fp16
    product of the two would be too small, the value.
    """
    dims = tl.arange(0, HEAD_DIM_PAD)
    in_head = dims < HEAD_DIM
    present = slots < end
    if MASKED:
        blocks = tl.load(table_ptr + slots // BLOCK_SIZE, mask=present, other=0)
        k_mask = in_head[:, None] & present[None, :]
        v_mask = present[:, None] & in_head[None, :]
    else:
        blocks = tl.load(table_ptr + slots // BLOCK_SIZE)
        k_mask = in_head[:, None]
        v_mask = in_head[None, :]
    # int64 before multiplying: a pool passes 2^31 elements at 4 GiB of fp16.
    heads = blocks.to(tl.int64) * NUM_KV_HEADS + kv_head
    rows = heads * BLOCK_SIZE + slots % BLOCK_SIZE
    offsets = rows * HEAD_DIM

    if CODING == "int4":
        keys = load_int4(
            k_pool_ptr,
            k_scale_ptr,
            rows,
            present,
            query.dtype,
            HEAD_DIM,
            HEAD_DIM_PAD,
            MASKED,
        ).trans()
    else:
        codes = tl.load(k_pool_ptr + offsets[None, :] + dims[:, None], mask=k_mask, other=0)
        keys = decoded(codes, query.dtype, CODING)
    scores = tl.dot(query, keys, input_precision="ieee") * scale
    if CODING == "int8":
        scores = scores * _row_scales(k_scale_ptr, rows, present, MASKED)[None, :]
    if SOFT_CAP is not None:
        scores = _tanh(scores) * (SOFT_CAP * LOG2_E)
    if MASKED:
        visible = slots[None, :] <= last_slots[:, None]
        if WINDOW is not None:
            visible = visible & (slots[None, :] > last_slots[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    raised = tl.maximum(largest, tl.max(scores, axis=1))
    # A row that has seen nothing yet has nothing to be compared with.
    anchor = raised if WINDOW is None else tl.where(raised == float("-inf"), 0.0, raised)
    shrink = tl.exp2(largest - anchor)
    weights = tl.exp2(scores - anchor[:, None])
    total = total * shrink + tl.sum(weights, axis=1)

    if CODING == "int4":
        values = load_int4(
            v_pool_ptr,
            v_scale_ptr,
            rows,
            present,
            query.dtype,
            HEAD_DIM,
            HEAD_DIM_PAD,
            MASKED,
        )
    else:
        codes = tl.load(v_pool_ptr + offsets[:, None] + dims[None, :], mask=v_mask, other=0)
        values = decoded(codes, query.dtype, CODING)
    if CODING == "int8":
        value_scales = _row_scales(v_scale_ptr, rows, present, MASKED)
        if query.dtype == tl.float16:
            values = (values.to(tl.float32) * value_scales[:, None]).to(tl.float16)
        else:
            weights = weights * value_scales[None, :]
    mixed = mixed * shrink[:, None]
    mixed = tl.dot(weights.to(query.dtype), values, acc=mixed, input_precision="ieee")
    return raised, total, mixed


@triton.jit
def _tanh(x):
    """Within 1e-7, without a library that the interpreter does not have."""
    exponents = tl.minimum(x * (2.0 * LOG2_E), _LARGEST_EXPONENT)
    return 1.0 - 2.0 / (tl.exp2(exponents) + 1.0)


@triton.jit
def _row_scales(scale_ptr, rows, present, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(scale_ptr + rows, mask=present, other=0.0)
    return tl.load(scale_ptr + rows)
