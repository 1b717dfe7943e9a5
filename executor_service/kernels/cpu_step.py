"""What the layers of one step share on the CPU: gather indexes, masks and write positions.

Chunks of one token are attended together in padded groups; longer chunks one by one, in tiles of
queries. Gathered KV is padded to a multiple of 16 slots with the zero block: sums over it keep
their grouping whatever the padding, so padding changes no bit of a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from executor_service.kernels import cpu_kv
from executor_service.kernels.backend import StepLayout

_SLOT_MULTIPLE = 16
_MAX_GROUP_SLOTS = 1 << 15
"""Slots gathered at once for chunks of one token: bounds the workspace."""
_MAX_SCORES = 1 << 22
"""Elements of one tile's score matrix per KV head: bounds the workspace, keeps it in cache."""
_MAX_TILE = 128
_MIN_TILE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KVWrite:
    rows: Tensor
    """Of `cpu_kv.slot_rows`: [num_tokens * 2 * heads]"""
    fresh_rows: Tensor | None
    """Of `cpu_kv.block_rows`: blocks begun but not filled. Zeroed first, as what an earlier owner
    left in the slots behind the last token is multiplied by 0, and 0 * inf is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Chunks of one token, padded to one length."""

    tokens: Tensor
    """[sequences] int64, rows of q"""
    num_slots: int
    gather: Tensor
    """Rows of `cpu_kv.head_block_rows`: [2, sequences, heads, blocks], flat"""
    mask: Tensor
    """[sequences, 1, 1, num_slots]: 0, or -inf behind the sequence's end"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Queries [first, first + count) of a chunk and the slots they may see."""

    first: int
    count: int
    num_slots: int
    """A multiple of 16 that covers the last query's position."""
    mask_start: int
    """Slots before it are seen by every query of the tile."""
    mask: Tensor
    """[1, count, 1, num_slots - mask_start]: 0, or -inf where a slot is later than the query"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongChunk:
    """A chunk of several tokens."""

    first_token: int
    num_slots: int
    gather: Tensor
    """Rows of `cpu_kv.head_block_rows`: [2, heads, blocks], flat"""
    tiles: list[Tile]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuStep:
    write: KVWrite
    groups: list[DecodeGroup]
    chunks: list[LongChunk]


def workspace_elements(
    max_context: int, block_size: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> int:
    """At most, of what attention gathers and of its scores."""
    slots = max(max_context + math.lcm(_SLOT_MULTIPLE, block_size), _MAX_GROUP_SLOTS)
    scores = max(_MAX_SCORES, _MIN_TILE * slots)
    return 2 * num_kv_heads * slots * head_dim + num_heads * scores


def begin_step(layout: StepLayout, kv: Tensor) -> CpuStep:
    starts, lengths = layout.starts.tolist(), layout.lengths.tolist()
    firsts = [0]
    for length in lengths:
        firsts.append(firsts[-1] + length)
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    single = [i for i, length in enumerate(lengths) if length == 1]
    tables = layout.block_tables.long()
    return CpuStep(
        write=_write(layout, kv, starts, ends),
        groups=[_group(kv, tables, chunks, firsts, ends) for chunks in _grouped(single, ends)],
        chunks=[
            _long_chunk(kv, tables[i], firsts[i], starts[i], ends[i])
            for i, length in enumerate(lengths)
            if length > 1
        ],
    )


def _write(layout: StepLayout, kv: Tensor, starts: list[int], ends: list[int]) -> KVWrite:
    block_size = kv.shape[4]
    fresh = [
        int(layout.block_tables[i, end // block_size])
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
        if end % block_size and end // block_size * block_size >= start
    ]
    return KVWrite(
        rows=cpu_kv.slot_row_ids(kv, layout.slot_mapping),
        fresh_rows=cpu_kv.block_row_ids(kv, torch.tensor(fresh)) if fresh else None,
    )


def _grouped(chunks: list[int], ends: list[int]) -> Iterator[list[int]]:
    """Cuts chunks into groups of like length: padding at most doubles what is read."""
    group: list[int] = []
    for chunk in sorted(chunks, key=lambda i: -ends[i]):
        longest = ends[group[0]] if group else 0
        if group and (ends[chunk] * 2 < longest or (len(group) + 1) * longest > _MAX_GROUP_SLOTS):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _padded_tables(kv: Tensor, tables: Tensor, ends: Tensor) -> Tensor:
    """[sequences, blocks]: the blocks up to each end, then the zero block."""
    block_size = kv.shape[4]
    multiple = _SLOT_MULTIPLE // math.gcd(_SLOT_MULTIPLE, block_size)
    needed = (ends + block_size - 1) // block_size
    width = math.ceil(int(needed.max()) / multiple) * multiple
    padded = tables.new_full((tables.shape[0], width), cpu_kv.zero_block(kv))
    padded[:, : tables.shape[1]] = tables[:, :width]
    return padded.masked_fill_(torch.arange(width) >= needed.unsqueeze(1), cpu_kv.zero_block(kv))


def _group(
    kv: Tensor, tables: Tensor, chunks: list[int], firsts: list[int], ends: list[int]
) -> DecodeGroup:
    lengths = torch.tensor([ends[i] for i in chunks])
    padded = _padded_tables(kv, tables[chunks], lengths)
    num_slots = padded.shape[1] * kv.shape[4]
    mask = torch.zeros(len(chunks), 1, 1, num_slots)
    mask.masked_fill_(torch.arange(num_slots) >= lengths.view(-1, 1, 1, 1), float("-inf"))
    return DecodeGroup(
        tokens=torch.tensor([firsts[i] for i in chunks]),
        num_slots=num_slots,
        gather=cpu_kv.head_block_row_ids(kv, padded),
        mask=mask,
    )


def _long_chunk(kv: Tensor, table: Tensor, first_token: int, start: int, end: int) -> LongChunk:
    padded = _padded_tables(kv, table.unsqueeze(0), torch.tensor([end]))
    num_slots = padded.shape[1] * kv.shape[4]
    size = max(_MIN_TILE, min(_MAX_TILE, _MAX_SCORES // num_slots // _MIN_TILE * _MIN_TILE))
    return LongChunk(
        first_token=first_token,
        num_slots=num_slots,
        gather=cpu_kv.head_block_row_ids(kv, padded),
        tiles=[
            _tile(start, first, min(size, end - start - first), num_slots)
            for first in range(0, end - start, size)
        ],
    )


def _tile(start: int, first: int, count: int, chunk_slots: int) -> Tile:
    last = start + first + count
    num_slots = min(chunk_slots, math.ceil(last / _SLOT_MULTIPLE) * _SLOT_MULTIPLE)
    mask_start = start + first
    mask = torch.zeros(count, num_slots - mask_start)
    mask.masked_fill_(
        torch.arange(num_slots - mask_start) > torch.arange(count).unsqueeze(1), float("-inf")
    )
    return Tile(
        first=first,
        count=count,
        num_slots=num_slots,
        mask_start=mask_start,
        mask=mask.view(1, count, 1, -1),
    )
