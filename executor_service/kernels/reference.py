"""Every operation in plain torch, written to be read: the specification of the backends.

Each works in the dtype of its inputs, so that float64 inputs give the figures that faster
versions are measured against. Shapes use T tokens, H query heads, K KV heads, D head_dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from executor_service.kernels.kv_kind import FP8_LARGEST, INT4_GROUP, KVKind, num_groups

_LEAST_RANGE = 1e-30
"""So that a row of zeros has a scale to divide by."""
_LEAST_INT4_SCALE = 2.0**-24
"""The least number above zero in float16."""


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
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """q: [T, H, D] -> [T, H, D]; `pool` as above, with the step's own K and V written.

    Position p of a sequence attends to [0, p] of it, or with a window w to (p - w, p], found
    through its row of `block_tables`. Query head h reads KV head h // (H / K). A soft cap c makes
    a score s into c * tanh(s / c).
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
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores.masked_fill_(torch.arange(end) > positions, float("-inf"))
        if window is not None:
            scores.masked_fill_(torch.arange(end) <= positions - window, float("-inf"))
        out[first : first + length] = torch.einsum("hts,shd->thd", scores.softmax(-1), v)
        first += length
    return out


def copy_blocks(pool: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """One after the other, every layer, K and V."""
    for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
        pool[:, :, destination] = pool[:, :, source]


class KVCodes(NamedTuple):
    """Heads of tokens as a pool of some kind holds them."""

    codes: Tensor
    """[..., D] in the kind's storage dtype; int4: [..., D / 2], dimension 2j in the low half"""
    scales: Tensor | None
    """int8: [...] float32. int4: [..., groups, 2] float16, scale and offset. Others: None"""


def encode_kv(x: Tensor, kind: KVKind) -> KVCodes:
    """x: [..., D] float32. NaN stays NaN in every kind, for the whole group that it stands in.

    int8: code * scale, scale = largest magnitude / 127. int4: code * scale + offset, offset = least
    of the group, scale = range / 15, both as rounded to float16 before codes are chosen.
    """
    if kind is KVKind.FP8_E4M3:
        bounded = x.clamp(-FP8_LARGEST, FP8_LARGEST)
        return KVCodes(bounded.to(torch.float8_e4m3fn).view(torch.uint8), None)
    if kind is KVKind.INT8:
        largest = x.abs().amax(-1).clamp(min=_LEAST_RANGE)
        codes = (x * (127.0 / largest).unsqueeze(-1)).round().clamp(-127, 127)
        return KVCodes(codes.nan_to_num().to(torch.int8), largest * (1 / 127.0))
    if kind is KVKind.INT4:
        return _encode_int4(x)
    return KVCodes(x.to(kind.storage), None)


def _encode_int4(x: Tensor) -> KVCodes:
    head_dim = x.shape[-1]
    missing = num_groups(head_dim) * INT4_GROUP - head_dim
    # The last value once more changes neither the least nor the largest.
    filled = torch.cat((x, x[..., -1:].expand(*x.shape[:-1], missing)), dim=-1)
    groups = filled.unflatten(-1, (-1, INT4_GROUP))
    offsets = groups.amin(-1).half()
    scales = ((groups.amax(-1) - groups.amin(-1)) * (1 / 15.0)).clamp(min=_LEAST_INT4_SCALE).half()
    steps = (groups - offsets.float().unsqueeze(-1)) * (1.0 / scales.float()).unsqueeze(-1)
    codes = steps.round().clamp(0, 15).nan_to_num().to(torch.uint8).flatten(-2)[..., :head_dim]
    return KVCodes(codes[..., 0::2] | codes[..., 1::2] << 4, torch.stack((scales, offsets), dim=-1))


def decode_kv(stored: KVCodes, kind: KVKind) -> Tensor:
    """[..., D] float32: what attention reads."""
    codes, scales = stored
    if kind is KVKind.FP8_E4M3:
        return codes.view(torch.float8_e4m3fn).float()
    if scales is None:
        return codes.float()
    if kind is KVKind.INT8:
        return codes.float() * scales.unsqueeze(-1)
    pairs = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).float()
    expanded = scales.float().repeat_interleave(INT4_GROUP, dim=-2)[..., : pairs.shape[-1], :]
    return pairs * expanded[..., 0] + expanded[..., 1]


def kept_kv(x: Tensor, kind: KVKind) -> Tensor:
    """What a pool gives back for x, in the dtype of x: `write_kv` of it is that of the kind."""
    return decode_kv(encode_kv(x.float(), kind), kind).to(x.dtype)
