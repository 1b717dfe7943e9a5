"""Weights packed for the C kernels.

Rule 1: what a file keeps in blocks stays in them, interleaved by output feature: no inflation.
Rule 2: all weights lie in a few large pieces of memory, for which the system is asked for huge
pages: a step reads all of them, and small pages cost a tenth of its bandwidth.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from executor_service.kernels.native import pages
from executor_service.kernels.native.library import Library
from executor_service.kernels.native.structs import Weight
from executor_service.kernels.weight_rows import (
    Blocks,
    Dequantized,
    Rows,
    RowsHeader,
    WeightKind,
    WeightRule,
)

_PARTS = 7
_ALIGNMENT = 64
_CHUNK_BYTES = 64 << 20


class WeightArena:
    """Hands out zeroed memory that lives as long as its tensors."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> Tensor:
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if start + num_bytes > self._chunk.numel():
            self._chunk, start = pages.zeroed(max(num_bytes, _CHUNK_BYTES)), 0
        self._used = start + num_bytes
        return self._chunk[start : self._used]


class NativeWeight:
    """[out_features, in_features] in the layout of its kind, or several such, one below another."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self.out_features = sum(part.out_features for part in parts)
        self.in_features = parts[0].in_features
        self._arrays: dict[int, ctypes.Array[Weight]] = {}

    @property
    def bytes_by_kind(self) -> Counter[WeightKind]:
        counter: Counter[WeightKind] = Counter()
        for part in self._parts:
            counter[part.kind] += part.data.numel()
        return counter

    def struct(self, bias: Tensor | None) -> Weight:
        """Points into this object and the bias: both must outlive it."""
        address = None if bias is None else bias.data_ptr()
        if len(self._parts) == 1:
            return self._parts[0].struct(address)
        structs = []
        for part in self._parts:
            structs.append(part.struct(address))
            if address is not None:
                address += part.out_features * 4
        key = 0 if bias is None else bias.data_ptr()
        array = self._arrays.setdefault(key, (Weight * len(structs))(*structs))
        return Weight(
            kind=_PARTS,
            out_features=self.out_features,
            in_features=self.in_features,
            data=ctypes.addressof(array),
            bias=None,
        )


class _Part:
    """Rows of one kind."""

    def __init__(self, kind: WeightKind, out_features: int, in_features: int, data: Tensor) -> None:
        self.kind = kind
        self.out_features = out_features
        self.in_features = in_features
        self.data = data

    def struct(self, bias: int | None) -> Weight:
        return Weight(
            kind=self.kind,
            out_features=self.out_features,
            in_features=self.in_features,
            data=self.data.data_ptr(),
            bias=bias,
        )


def pack(
    library: Library, arena: WeightArena, rows: Sequence[Rows], rule: WeightRule
) -> NativeWeight:
    """Stacks the rows; neighbours of one kind become one part."""
    parts = []
    for kind, run in groupby(rows, rule.kind_of):
        read = [part.values if isinstance(part, Dequantized) else part for part in run]
        parts.append(_pack_run(library, arena, kind, read))
    return NativeWeight(parts)


def packed_bytes(library: Library, rows: Sequence[RowsHeader], rule: WeightRule) -> int:
    """Of what `pack` would make of the rows."""
    total = 0
    for kind, run in groupby(rows, rule.kind_for):
        stack = list(run)
        out_features = sum(part.out_features for part in stack)
        total += library.call.oct_packed_bytes(kind, out_features, stack[0].in_features)
    return total


def _pack_run(
    library: Library, arena: WeightArena, kind: WeightKind, rows: Sequence[Tensor | Blocks]
) -> _Part:
    counts = [part.out_features if isinstance(part, Blocks) else len(part) for part in rows]
    first = rows[0]
    in_features = first.in_features if isinstance(first, Blocks) else first.shape[1]
    data = arena.take(library.call.oct_packed_bytes(kind, sum(counts), in_features))
    done = 0
    for part, count in zip(rows, counts, strict=True):
        source = _source(library, kind, part)
        library.call.oct_pack(kind, in_features, data.data_ptr(), done, count, source.data_ptr())
        done += count
    return _Part(kind, done, in_features, data)


def _source(library: Library, kind: WeightKind, rows: Tensor | Blocks) -> Tensor:
    """What is packed: blocks of the kind, or floats where packing quantizes or nothing does."""
    if isinstance(rows, Blocks):
        return rows.data.contiguous()
    floats = rows.float().contiguous()
    if kind in (WeightKind.FLOAT32, WeightKind.INT8):
        return floats
    row_bytes = library.call.oct_source_bytes(kind, rows.shape[1])
    blocks = torch.empty(len(rows), row_bytes, dtype=torch.uint8)
    library.call.oct_quantize(kind, floats.data_ptr(), len(rows), rows.shape[1], blocks.data_ptr())
    return blocks
