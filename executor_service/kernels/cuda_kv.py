"""The GPU's layout of the KV pool: [num_layers, 2, num_blocks + 1, heads, block_size, head_dim].

One head's slots of one block are contiguous: a program attends with one KV head, and reads a block
in one run of block_size * head_dim elements. Scales of quantized kinds lie beside in the same
order. The block at the end belongs to nobody: rows that only fill up a captured batch write there
and read what they wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from executor_service.kernels import reference
from executor_service.kernels.backend import KVShape
from executor_service.kernels.kv_kind import KVKind, num_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaKV:
    """The pool's tensors, and what their elements are."""

    kind: KVKind
    codes: Tensor
    """[num_layers, 2, num_blocks + 1, heads, block_size, elements] of the kind's storage dtype"""
    scales: Tensor | None
    """int8: [num_layers, 2, num_blocks + 1, heads, block_size] float32;
    int4: [..., block_size, groups, 2] float16"""

    @property
    def tensors(self) -> list[Tensor]:
        return [self.codes] if self.scales is None else [self.codes, self.scales]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


class LayerKV(NamedTuple):
    """One layer of the pool as kernels take it: views."""

    kind: KVKind
    keys: Tensor
    """[num_blocks + 1, heads, block_size, elements]"""
    values: Tensor
    key_scales: Tensor | None
    """[num_blocks + 1, heads, block_size] float32, or [..., groups, 2] float16"""
    value_scales: Tensor | None

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    @property
    def num_rows(self) -> int:
        """Heads of slots; those of the values lie right behind those of the keys."""
        return self.keys.shape[:3].numel()


def allocate(shape: KVShape, kind: KVKind, device: torch.device) -> CudaKV:
    """Zeroed."""
    rows = (shape.num_layers, 2, shape.num_blocks + 1, shape.num_kv_heads, shape.block_size)
    elements = kind.row_elements(shape.head_dim)
    scales = None
    if kind is KVKind.INT8:
        scales = torch.zeros(rows, dtype=torch.float32, device=device)
    elif kind is KVKind.INT4:
        pairs = (*rows, num_groups(shape.head_dim), 2)
        scales = torch.zeros(pairs, dtype=torch.float16, device=device)
    codes = torch.zeros(*rows, elements, dtype=kind.storage, device=device)
    return CudaKV(kind=kind, codes=codes, scales=scales)


def spare_block(kv: CudaKV) -> int:
    return kv.codes.shape[2] - 1


def block_size(kv: CudaKV) -> int:
    return kv.codes.shape[4]


def of_layer(kv: CudaKV, layer: int) -> LayerKV:
    keys, values = kv.codes[layer, 0], kv.codes[layer, 1]
    if kv.scales is None:
        return LayerKV(kv.kind, keys, values, None, None)
    return LayerKV(kv.kind, keys, values, kv.scales[layer, 0], kv.scales[layer, 1])


def read_blocks(kv: CudaKV, block_ids: Tensor) -> Tensor:
    """[num_layers, 2, n, block_size, heads, head_dim], a copy; float32 of what is quantized."""
    codes = kv.codes[:, :, block_ids]
    if kv.codes.is_floating_point():
        return codes.transpose(3, 4).contiguous()
    scales = None if kv.scales is None else kv.scales[:, :, block_ids]
    decoded = reference.decode_kv(reference.KVCodes(codes, scales), kv.kind)
    return decoded.transpose(3, 4).contiguous()


def fill_blocks(kv: CudaKV, block_ids: Tensor, value: float) -> None:
    """Every element, as near to `value` as the kind comes."""
    head_dim = kv.codes.shape[5] * (2 if kv.kind is KVKind.INT4 else 1)
    codes, scales = reference.encode_kv(torch.full((head_dim,), value), kv.kind)
    kv.codes[:, :, block_ids] = codes.to(kv.codes.device)
    if kv.scales is not None and scales is not None:
        kv.scales[:, :, block_ids] = scales.to(kv.codes.device)
