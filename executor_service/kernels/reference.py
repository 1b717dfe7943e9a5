"""Every operation in plain torch, written to be read: the specification of the backends.

Each works in the dtype of its inputs, so that float64 inputs give the figures that faster
versions are measured against. Shapes use T tokens, H query heads, K KV heads, D head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x: [T, in], weight: [out, in], bias: [out] -> [T, out]"""
    y = x @ weight.t()
    return y if bias is None else y + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: [..., width], weight: [width]"""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and that sum."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [T, heads, D]; cos, sin: [T, D / 2]. Pairs are (i, i + D / 2), as in HF checkpoints."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 * width]: silu of the first half times the second."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def write_kv(pool: Tensor, layer: int, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
    """pool: the logical pool [layers, 2, blocks, block_size, K, D]; k, v: [T, K, D]."""
    block_size = pool.shape[3]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    pool[layer, 0, blocks, offsets] = k
    pool[layer, 1, blocks, offsets] = v


def attention(
    q: Tensor,
    pool: Tensor,
    layer: int,
    scale: float,
    starts: Tensor,
    lengths: Tensor,
    block_tables: Tensor,
) -> Tensor:
    """q: [T, H, D] -> [T, H, D]; `pool` as above, with the step's own K and V written.

    Position p of a sequence attends to [0, p] of it, found through its row of `block_tables`.
    Query head h reads KV head h // (H / K).
    """
    out = torch.empty_like(q)
    first = 0
    for start, length, table in zip(
        starts.tolist(), lengths.tolist(), block_tables.long(), strict=True
    ):
        end = start + length
        k, v = (pool[layer, side, table].flatten(0, 1)[:end] for side in (0, 1))
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("thd,shd->hts", q[first : first + length], k) * scale
        positions = torch.arange(start, end).unsqueeze(1)
        scores.masked_fill_(torch.arange(end) > positions, float("-inf"))
        out[first : first + length] = torch.einsum("hts,shd->thd", scores.softmax(-1), v)
        first += length
    return out


def copy_blocks(pool: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """One after the other, every layer, K and V."""
    for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
        pool[:, :, destination] = pool[:, :, source]
