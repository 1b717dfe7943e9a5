"""Paged attention on the CPU: gather the blocks, then matrix products of invariant shape.

Three things keep a row's bits independent of its neighbours and of chunking, as measured with MKL:
query rows of a KV head are padded to a multiple of 8 (other counts take kernels that sum in
another order), the product with V runs over at most 128 slots at a time, added in order (longer
ones are split unevenly), and softmax sums over a multiple of 16 slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from executor_service.kernels import cpu_kv
from executor_service.kernels.cpu_step import CpuStep, DecodeGroup, LongChunk, Tile

_ROW_MULTIPLE = 8
_VALUE_SLOTS = 128


class CpuAttention:
    """The computation and its workspaces, which grow to the largest step seen."""

    def __init__(self) -> None:
        self._kv = torch.empty(0)
        self._scores = torch.empty(0)
        self._queries = torch.empty(0)

    def run(self, q: Tensor, kv: Tensor, layer: int, scale: float, step: CpuStep) -> Tensor:
        """q: [T, H, D] -> [T, H, D]"""
        out = torch.empty(q.shape, dtype=q.dtype)
        for group in step.groups:
            self._decode(q, kv, layer, scale, group, out)
        for chunk in step.chunks:
            self._chunk(q, kv, layer, scale, chunk, out)
        return out

    def _decode(
        self, q: Tensor, kv: Tensor, layer: int, scale: float, group: DecodeGroup, out: Tensor
    ) -> None:
        keys, values = self._gather(kv, layer, group.gather, group.num_slots)
        heads, head_dim = kv.shape[3], kv.shape[5]
        count = len(group.tokens)
        queries = q.index_select(0, group.tokens).view(count * heads, -1, head_dim)
        size = queries.shape[1]
        padded = self._padded_queries(count * heads, size, head_dim)
        torch.mul(queries, scale, out=padded[:, :size])
        scores = self._score_buffer(count * heads, padded.shape[1], group.num_slots)
        torch.bmm(padded, keys.transpose(1, 2), out=scores)
        scores.view(count, heads, -1, group.num_slots).add_(group.mask)
        mixed = _mix(scores, values)[:, :size]
        out.index_copy_(0, group.tokens, mixed.reshape(count, -1, head_dim))

    def _chunk(
        self, q: Tensor, kv: Tensor, layer: int, scale: float, chunk: LongChunk, out: Tensor
    ) -> None:
        keys, values = self._gather(kv, layer, chunk.gather, chunk.num_slots)
        for tile in chunk.tiles:
            first = chunk.first_token + tile.first
            rows = slice(first, first + tile.count)
            self._tile(q[rows], keys, values, scale, tile, out[rows])

    def _tile(
        self, q: Tensor, keys: Tensor, values: Tensor, scale: float, tile: Tile, out: Tensor
    ) -> None:
        heads, head_dim = keys.shape[0], keys.shape[2]
        group = q.shape[1] // heads
        size = tile.count * group
        padded = self._padded_queries(heads, size, head_dim)
        rows = padded[:, :size].view(heads, tile.count, group, head_dim)
        torch.mul(q.view(tile.count, heads, group, head_dim).transpose(0, 1), scale, out=rows)
        scores = self._score_buffer(heads, padded.shape[1], tile.num_slots)
        torch.bmm(padded, keys[:, : tile.num_slots].transpose(1, 2), out=scores)
        seen = scores[:, :size].view(heads, tile.count, group, tile.num_slots)
        seen[..., tile.mask_start :].add_(tile.mask)
        mixed = _mix(scores, values[:, : tile.num_slots])[:, :size]
        out.view(tile.count, heads, group, head_dim).copy_(
            mixed.view(heads, tile.count, group, head_dim).transpose(0, 1)
        )

    def _gather(
        self, kv: Tensor, layer: int, rows: Tensor, num_slots: int
    ) -> tuple[Tensor, Tensor]:
        """K and V, each [sequences * heads, num_slots, head_dim]"""
        source = cpu_kv.head_block_rows(kv, layer)
        self._kv = _grown(self._kv, len(rows) * source.shape[1])
        gathered = self._kv[: len(rows) * source.shape[1]].view(len(rows), source.shape[1])
        torch.index_select(source, 0, rows, out=gathered)
        keys, values = gathered.view(2, -1, num_slots, kv.shape[5]).unbind(0)
        return keys, values

    def _padded_queries(self, batch: int, size: int, head_dim: int) -> Tensor:
        """[batch, size rounded up, head_dim] with zero rows behind `size`."""
        rounded = -(-size // _ROW_MULTIPLE) * _ROW_MULTIPLE
        self._queries = _grown(self._queries, batch * rounded * head_dim)
        queries = self._queries[: batch * rounded * head_dim].view(batch, rounded, head_dim)
        if rounded > size:
            queries[:, size:] = 0
        return queries

    def _score_buffer(self, batch: int, size: int, num_slots: int) -> Tensor:
        self._scores = _grown(self._scores, batch * size * num_slots)
        return self._scores[: batch * size * num_slots].view(batch, size, num_slots)


def _mix(scores: Tensor, values: Tensor) -> Tensor:
    """softmax(scores) @ values. scores: [batch, rows, slots], overwritten."""
    torch.softmax(scores, -1, out=scores)
    mixed = torch.bmm(scores[..., :_VALUE_SLOTS], values[:, :_VALUE_SLOTS])
    for first in range(_VALUE_SLOTS, scores.shape[2], _VALUE_SLOTS):
        part = slice(first, first + _VALUE_SLOTS)
        torch.baddbmm(mixed, scores[..., part], values[:, part], out=mixed)
    return mixed


def _grown(buffer: Tensor, size: int) -> Tensor:
    return buffer if buffer.numel() >= size else torch.empty(size)
