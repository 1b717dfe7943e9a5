"""The KV pool as the C kernels lay it out (src/kv.h), and its blocks in logical shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from executor_service.kernels.backend import KVShape
from executor_service.kernels.native import pages
from executor_service.kernels.native.library import Library
from executor_service.kernels.native.structs import KV

LANE_SLOTS = 16
_KINDS = {torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.bfloat16: 3}
KV_DTYPES = tuple(_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeKV:
    """The pool's bytes, and what they mean."""

    records: Tensor
    """[num_layers, num_blocks, num_kv_heads, record_bytes] uint8"""
    shape: KVShape
    dtype: torch.dtype
    """int8: with one float32 scale per token, head and side."""
    struct: KV

    @property
    def nbytes(self) -> int:
        return self.records.nbytes


def allocate(library: Library, shape: KVShape, dtype: torch.dtype) -> NativeKV:
    """Zeroed. ValueError for an odd head_dim in bfloat16, of which dimensions are pairs."""
    if dtype == torch.bfloat16 and shape.head_dim % 2:
        raise ValueError(f"head_dim {shape.head_dim} is odd: bfloat16 keeps pairs")
    struct = without_data(shape, dtype)
    record_bytes = library.call.oct_kv_record_bytes(struct)
    records = pages.zeroed(
        shape.num_layers * shape.num_blocks * shape.num_kv_heads * record_bytes
    ).view(shape.num_layers, shape.num_blocks, shape.num_kv_heads, record_bytes)
    struct.data = records.data_ptr()
    return NativeKV(records=records, shape=shape, dtype=dtype, struct=struct)


def without_data(shape: KVShape, dtype: torch.dtype) -> KV:
    """What a pool would be, for those who ask for sizes."""
    return KV(
        dtype=_KINDS[dtype],
        num_layers=shape.num_layers,
        num_blocks=shape.num_blocks,
        block_size=shape.block_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
    )


def read_blocks(kv: NativeKV, block_ids: Tensor) -> Tensor:
    """[num_layers, 2, n, block_size, num_kv_heads, head_dim] float32, a copy."""
    shape = kv.shape
    keys, values, scales = _sides(kv, kv.records[:, block_ids])
    lanes = keys.shape[-1]
    keys = keys.transpose(-1, -2).reshape(*keys.shape[:3], -1, keys.shape[-2])
    assert keys.shape[3] == shape.block_size and shape.block_size % lanes == 0
    both = torch.stack((keys, values), dim=1)[..., : shape.head_dim].float()
    if scales is not None:
        both = both * scales.unsqueeze(-1)
    return both.transpose(3, 4).contiguous()


def fill_blocks(kv: NativeKV, block_ids: Tensor, value: float) -> None:
    """Every element, as far as the dtype can say `value`."""
    records = kv.records[:, block_ids]
    if kv.dtype != torch.int8:
        records.view(kv.dtype).fill_(value)
    else:
        records.fill_(1)
        _, _, scales = _sides(kv, records)
        if scales is not None:
            scales.fill_(value)
    kv.records[:, block_ids] = records


def _sides(kv: NativeKV, records: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of records [L, n, heads, bytes]: K [.., blocks of lanes, width, lanes] and
    V [.., block_size, width], copies where elements lie in pairs; a view of the scales
    [L, 2, n, heads, block_size]."""
    size = kv.shape.block_size
    width = math.ceil(kv.shape.head_dim / LANE_SLOTS) * LANE_SLOTS
    lanes = LANE_SLOTS if size % LANE_SLOTS == 0 else size
    pair = 2 if kv.dtype == torch.bfloat16 and lanes == LANE_SLOTS else 1
    side = size * width * kv.dtype.itemsize
    keys = records[..., :side].view(kv.dtype)
    values = records[..., side : 2 * side].view(kv.dtype)
    scales = None
    if kv.dtype == torch.int8:
        flat = records[..., 2 * side : 2 * side + 8 * size].view(torch.float32)
        scales = flat.unflatten(-1, (2, size)).movedim(3, 1)
    return (
        keys.unflatten(-1, (size // lanes, width // pair, lanes, pair)).mT.flatten(-3, -2),
        values.unflatten(-1, (size // pair, width, pair)).mT.flatten(-3, -2),
        scales,
    )
