# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Draws one token a row: temperature, top-k, top-p, min-p, one uniform, no sorting.

The edge of a truncation is searched instead: float32 values that are not NaN are ordered as
integers of their bits are, so halving an interval of those integers ends at the exact edge, and
mostly long before, once a single value is left between the bounds. Each halving reads the row once
more (from cache); a program has one row, so a row's result does not depend on its neighbours.

The uniform is word 0 of Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2,
3", SC 2011) under the row's seed and the counter (position, index, 0, 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_service.kernels.launch_config import power_of_two

_MAX_TILE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawColumns:
    """What each row is drawn by, [num_rows] each."""

    temperatures: Tensor
    """float32; 0 takes the largest logit"""
    top_k: Tensor
    """int32; 0: off"""
    top_p: Tensor
    """float64; 1: off"""
    min_p: Tensor
    """float32; 0: off"""
    seeds: Tensor
    """int64, the bits of the unsigned seed"""
    positions: Tensor
    """int32, of the token drawn"""
    indexes: Tensor
    """int32, of the choice within the request"""


@triton.jit
def _order_key(x):
    """int32 that compares as fp32 does; 0.0 and -0.0 are one."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weights(x, largest, temperature):
    """Unnormalized probabilities, the largest 1."""
    return tl.exp((x - largest) / temperature)


@triton.jit
def _middle(low, high):
    """Rounded down, without overflow."""
    return (low >> 1) + (high >> 1) + (low & high & 1)


@triton.jit
def _in_top_k(key, ids, low, high, edge):
    return (key >= high) | ((key >= low) & (ids <= edge))


@triton.jit
def _top_k_edge(row_ptr, vocab_size, top_k, largest, TILE: tl.constexpr):
    """(low, high, edge): the k largest are all keys from high on, and those from low on up to id
    `edge`. Keys in [low, high) are equal, or all of them belong."""
    ids = tl.arange(0, TILE)
    low = tl.full([], -2147483648, tl.int32)
    high = _order_key(largest) + 1
    num_low = vocab_size
    num_high = 0
    while (low + 1 < high) & (num_low > top_k):
        middle = _middle(low, high)
        count = 0
        for first in range(0, vocab_size, TILE):
            there = first + ids < vocab_size
            x = tl.load(row_ptr + first + ids, mask=there, other=float("-inf"))
            count += tl.sum(((_order_key(x) >= middle) & there).to(tl.int32), axis=0)
        if count >= top_k:
            low = middle
            num_low = count
        else:
            high = middle
            num_high = count
    seen = 0
    edge = -1
    for first in range(0, vocab_size, TILE):
        there = first + ids < vocab_size
        x = tl.load(row_ptr + first + ids, mask=there, other=float("-inf"))
        key = _order_key(x)
        at_edge = ((key >= low) & (key < high) & there).to(tl.int32)
        rank = seen + tl.cumsum(at_edge, axis=0)
        last = (at_edge > 0) & (rank <= top_k - num_high)
        edge = tl.maximum(edge, tl.max(tl.where(last, first + ids, -1), axis=0))
        seen += tl.sum(at_edge, axis=0)
    return low, high, edge


@triton.jit
def _top_p_edge(
    row_ptr, vocab_size, top_p, largest, temperature, k_low, k_high, k_edge, TILE: tl.constexpr
):
    """(low, high, edge) of the fewest largest weights that hold `top_p` of the sum of those in
    top-k: keys are the bits of weights, else as for `_top_k_edge`."""
    ids = tl.arange(0, TILE)
    low = tl.full([], 0, tl.int32)
    # The bits of 1.0, and one more.
    high = tl.full([], 0x3F800001, tl.int32)
    wanted = top_p
    mass_high = top_p * 0.0
    num_low = vocab_size
    num_high = 0
    searched = 0
    while (searched == 0) | ((low + 1 < high) & (num_low > num_high + 1)):
        # First at the lower bound, where the sum is that of all in top-k.
        middle = tl.where(searched == 0, low, _middle(low, high))
        count = 0
        mass = top_p * 0.0
        for first in range(0, vocab_size, TILE):
            there = first + ids < vocab_size
            x = tl.load(row_ptr + first + ids, mask=there, other=float("-inf"))
            weights = _weights(x, largest, temperature)
            inside = there & _in_top_k(_order_key(x), first + ids, k_low, k_high, k_edge)
            inside &= weights.to(tl.int32, bitcast=True) >= middle
            count += tl.sum(inside.to(tl.int32), axis=0)
            mass += tl.sum(tl.where(inside, weights, 0.0).to(tl.float64), axis=0)
        if searched == 0:
            wanted = top_p * mass
            num_low = count
        elif mass >= wanted:
            low = middle
            num_low = count
        else:
            high = middle
            num_high = count
            mass_high = mass
        searched += 1
    held = mass_high
    edge = -1
    for first in range(0, vocab_size, TILE):
        there = first + ids < vocab_size
        x = tl.load(row_ptr + first + ids, mask=there, other=float("-inf"))
        weights = _weights(x, largest, temperature)
        bits = weights.to(tl.int32, bitcast=True)
        at_edge = there & _in_top_k(_order_key(x), first + ids, k_low, k_high, k_edge)
        at_edge &= (bits >= low) & (bits < high)
        masses = tl.where(at_edge, weights, 0.0).to(tl.float64)
        before = held + tl.cumsum(masses, axis=0) - masses
        last = at_edge & (before < wanted)
        edge = tl.maximum(edge, tl.max(tl.where(last, first + ids, -1), axis=0))
        held += tl.sum(masses, axis=0)
    return low, high, edge


@triton.jit
def _kept_weights(
    x,
    ids,
    there,
    largest,
    temperature,
    min_p,
    k_low,
    k_high,
    k_edge,
    p_low,
    p_high,
    p_edge,
):
    """Weights in fp64 of what may be drawn, 0 for the rest."""
    weights = _weights(x, largest, temperature)
    bits = weights.to(tl.int32, bitcast=True)
    kept = there & (weights > 0) & (weights >= min_p)
    kept &= _in_top_k(_order_key(x), ids, k_low, k_high, k_edge)
    kept &= (bits >= p_high) | ((bits >= p_low) & (ids <= p_edge))
    return tl.where(kept, weights, 0.0).to(tl.float64)


@triton.jit
def token_draw_kernel(
    logits_ptr,  # [num_rows, vocab_size] fp32, dense
    tokens_ptr,  # [num_rows] int32, out
    largest_ptr,  # [num_rows] fp32, out: -inf where no token is left to draw, NaN if any is
    temperatures_ptr,  # [num_rows] fp32
    top_k_ptr,  # [num_rows] int32
    top_p_ptr,  # [num_rows] fp64
    min_p_ptr,  # [num_rows] fp32
    seeds_ptr,  # [num_rows] int64
    positions_ptr,  # [num_rows] int32
    indexes_ptr,  # [num_rows] int32
    vocab_size,
    TILE: tl.constexpr,
):
    """Equals `executor_service.runner.sampler.draw_token`, and argmax at temperature 0.

    Grid: (num_rows,). Masks: tokens past the vocabulary. A row whose
    largest is not finite is not drawn from. Weights are fp32; sums of weights and the
    cumulative distribution are fp64, compared with the uniform in fp32.
    """
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * vocab_size
    ids = tl.arange(0, TILE)

    largest = float("-inf")
    token = 0
    num_undefined = 0
    for first in range(0, vocab_size, TILE):
        x = tl.load(row_ptr + first + ids, mask=first + ids < vocab_size, other=float("-inf"))
        num_undefined += tl.sum((x != x).to(tl.int32), axis=0)
        top = tl.max(x, axis=0)
        if top > largest:
            largest = top
            token = first + tl.argmax(x, axis=0)
    largest = tl.where(num_undefined == 0, largest, float("nan"))
    tl.store(largest_ptr + row, largest)

    temperature = tl.load(temperatures_ptr + row)
    if (temperature > 0) & (largest > float("-inf")) & (largest < float("inf")):
        k_low = tl.full([], -2147483648, tl.int32)
        k_high = tl.full([], -2147483648, tl.int32)
        k_edge = -1
        top_k = tl.load(top_k_ptr + row)
        if (top_k > 0) & (top_k < vocab_size):
            k_low, k_high, k_edge = _top_k_edge(row_ptr, vocab_size, top_k, largest, TILE)
        p_low = tl.full([], 0, tl.int32)
        p_high = tl.full([], 0, tl.int32)
        p_edge = -1
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1.0:
            p_low, p_high, p_edge = _top_p_edge(
                row_ptr, vocab_size, top_p, largest, temperature, k_low, k_high, k_edge, TILE
            )
        min_p = tl.load(min_p_ptr + row)

        mass = top_p * 0.0
        for first in range(0, vocab_size, TILE):
            there = first + ids < vocab_size
            x = tl.load(row_ptr + first + ids, mask=there, other=float("-inf"))
            masses = _kept_weights(
                x, first + ids, there, largest, temperature, min_p,
                k_low, k_high, k_edge, p_low, p_high, p_edge,
            )  # fmt: skip
            mass += tl.sum(masses, axis=0)

        seed = tl.load(seeds_ptr + row)
        position = tl.load(positions_ptr + row)
        index = tl.load(indexes_ptr + row)
        word, _, _, _ = tl.philox(seed, position, index, index * 0, index * 0)
        uniform = (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24

        before = mass * 0.0
        token = vocab_size
        last = 0
        for first in range(0, vocab_size, TILE):
            there = first + ids < vocab_size
            x = tl.load(row_ptr + first + ids, mask=there, other=float("-inf"))
            masses = _kept_weights(
                x, first + ids, there, largest, temperature, min_p,
                k_low, k_high, k_edge, p_low, p_high, p_edge,
            )  # fmt: skip
            distribution = ((before + tl.cumsum(masses, axis=0)) / mass).to(tl.float32)
            reached = (masses > 0) & (distribution >= uniform)
            token = tl.minimum(token, tl.min(tl.where(reached, first + ids, vocab_size), axis=0))
            last = tl.maximum(last, tl.max(tl.where(masses > 0, first + ids, 0), axis=0))
            before += tl.sum(masses, axis=0)
        # Rounding may leave the uniform past the end.
        token = tl.where(token < vocab_size, token, last)
    tl.store(tokens_ptr + row, token)


def draw_tokens(logits: Tensor, columns: DrawColumns) -> tuple[Tensor, Tensor]:
    """Tokens [num_rows] int32, and each row's largest logit, NaN if the row has one.

    Where that is not finite, the token means nothing.

    logits: [num_rows, vocab_size] float32, contiguous.
    """
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    largest = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    token_draw_kernel[(num_rows,)](
        logits,
        tokens,
        largest,
        columns.temperatures,
        columns.top_k,
        columns.top_p,
        columns.min_p,
        columns.seeds,
        columns.positions,
        columns.indexes,
        vocab_size,
        TILE=min(_MAX_TILE, power_of_two(vocab_size)),
        num_warps=8,
    )
    return tokens, largest
