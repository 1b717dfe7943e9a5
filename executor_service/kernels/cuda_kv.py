"""The GPU's layout of the KV pool: [num_layers, 2, num_blocks + 1, heads, block_size, head_dim].

One head's slots of one block are contiguous: a program attends with one KV head, and reads a block
in one run of block_size * head_dim elements. The block at the end belongs to nobody: rows that only
fill up a captured batch write there and read what they wrote.
"""

from __future__ import annotations

import torch
from torch import Tensor

from executor_service.kernels.backend import KVShape


def allocate(shape: KVShape, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(
        shape.num_layers,
        2,
        shape.num_blocks + 1,
        shape.num_kv_heads,
        shape.block_size,
        shape.head_dim,
        dtype=dtype,
        device=device,
    )


def spare_block(kv: Tensor) -> int:
    return kv.shape[2] - 1


def block_size(kv: Tensor) -> int:
    return kv.shape[4]


def keys(kv: Tensor, layer: int) -> Tensor:
    """[num_blocks + 1, heads, block_size, head_dim], a view."""
    return kv[layer, 0]


def values(kv: Tensor, layer: int) -> Tensor:
    return kv[layer, 1]
