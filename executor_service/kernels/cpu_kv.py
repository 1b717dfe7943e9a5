"""The CPU backend's layout of the KV pool: [num_layers, 2, num_blocks + 1, heads, block_size, D].

One head's slots of one block are contiguous, so that a gather copies runs of block_size * D
elements and its result is a batch of matrices as `bmm` wants them. The block at the end belongs to
nobody and stays zero: tables are padded with it, so that padding never reads what someone wrote.
"""

from __future__ import annotations

import torch
from torch import Tensor

from executor_service.kernels.backend import KVShape


def allocate(shape: KVShape) -> Tensor:
    return torch.zeros(
        shape.num_layers,
        2,
        shape.num_blocks + 1,
        shape.num_kv_heads,
        shape.block_size,
        shape.head_dim,
    )


def zero_block(kv: Tensor) -> int:
    return kv.shape[2] - 1


def slot_rows(kv: Tensor, layer: int) -> Tensor:
    """[2 * blocks * heads * block_size, head_dim]"""
    return kv[layer].view(-1, kv.shape[5])


def head_block_rows(kv: Tensor, layer: int) -> Tensor:
    """[2 * blocks * heads, block_size * head_dim]"""
    return kv[layer].view(-1, kv.shape[4] * kv.shape[5])


def block_rows(kv: Tensor, layer: int) -> Tensor:
    """[2 * blocks, heads * block_size * head_dim]"""
    return kv[layer].view(2 * kv.shape[2], -1)


def slot_row_ids(kv: Tensor, slot_mapping: Tensor) -> Tensor:
    """Rows of `slot_rows` for tokens: [num_tokens, 2, heads], flat. slot_mapping: [num_tokens]."""
    num_blocks, heads, block_size = kv.shape[2:5]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    sides = torch.arange(2).view(1, 2, 1) * num_blocks
    rows = (sides + blocks.view(-1, 1, 1)) * heads + torch.arange(heads)
    return (rows * block_size + offsets.view(-1, 1, 1)).flatten()


def head_block_row_ids(kv: Tensor, tables: Tensor) -> Tensor:
    """For `head_block_rows` of tables [sequences, blocks]: [2, sequences, heads, blocks], flat."""
    num_blocks, heads = kv.shape[2:4]
    sides = torch.arange(2).view(2, 1, 1, 1) * num_blocks
    rows = (sides + tables[None, :, None, :]) * heads + torch.arange(heads).view(1, 1, heads, 1)
    return rows.flatten()


def block_row_ids(kv: Tensor, block_ids: Tensor) -> Tensor:
    """Rows of `block_rows`: K's, then V's."""
    return torch.cat((block_ids, block_ids + kv.shape[2]))
