"""Rows of a weight as a checkpoint delivers them, before a backend packs them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from torch import Tensor

GROUP = 32
"""in_features that share a scale in most kinds."""
_SUPER = 256


class WeightKind(enum.IntEnum):
    """What a packed weight holds; the numbers are those of the C kernels."""

    FLOAT32 = 0
    INT8 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 4
    Q4_K = 5
    Q6_K = 6

    @property
    def block_size(self) -> int:
        """in_features of one block; rows of other lengths cannot be of this kind."""
        if self is WeightKind.FLOAT32:
            return 1
        return _SUPER if self in (WeightKind.Q4_K, WeightKind.Q6_K) else GROUP

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Rows [out_features, in_features] in blocks of a GGUF kind."""

    kind: WeightKind
    out_features: int
    in_features: int
    data: Tensor
    """[out_features, bytes of a row] uint8"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dequantized:
    """Rows that a file keeps in a kind which is none of `WeightKind`."""

    values: Tensor
    """float32 [out_features, in_features]"""
    stored_as: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsHeader:
    """What a checkpoint says of rows before they are read."""

    out_features: int
    in_features: int
    block_kind: WeightKind | None
    """The kind of blocks that they are stored in; None: of none of these kinds."""
    stored_as: str | None
    """The name of what they are quantized in, with a `block_kind` or without; None: floats."""

    @property
    def num_elements(self) -> int:
        return self.out_features * self.in_features


Rows = Tensor | Blocks | Dequantized
"""A Tensor is float32 [out_features, in_features]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRule:
    """What weights of one role are packed as."""

    kept: frozenset[WeightKind]
    """Blocks of these kinds stay as they are stored; others are dequantized."""
    floats: WeightKind
    """What floats become where their rows are whole blocks of it."""
    others: WeightKind | None = None
    """Likewise of what was quantized and is no WeightKind; None: as floats."""

    def kind_of(self, rows: Rows) -> WeightKind:
        """Rows that are not whole blocks of what is wanted are int8 if they are whole groups."""
        if isinstance(rows, Blocks):
            return rows.kind
        if isinstance(rows, Dequantized):
            return _fitting(self._of_quantized, rows.values.shape[1])
        return _fitting(self.floats, rows.shape[1])

    def kind_for(self, header: RowsHeader) -> WeightKind:
        """What `kind_of` will say of the rows once they are read."""
        if header.block_kind is not None and header.block_kind in self.kept:
            return header.block_kind
        wanted = self.floats if header.stored_as is None else self._of_quantized
        return _fitting(wanted, header.in_features)

    @property
    def _of_quantized(self) -> WeightKind:
        return self.floats if self.others is None else self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRules:
    linears: WeightRule
    embeddings: WeightRule
    """Of the embedding and the head, which suffer more from few bits."""


def _fitting(wanted: WeightKind, in_features: int) -> WeightKind:
    for kind in (wanted, WeightKind.INT8):
        if wanted is not WeightKind.FLOAT32 and in_features % kind.block_size == 0:
            return kind
    return WeightKind.FLOAT32


_EXACT = WeightRule(kept=frozenset(), floats=WeightKind.FLOAT32)
EXACT_WEIGHTS = WeightRules(linears=_EXACT, embeddings=_EXACT)
"""Floats, and all blocks dequantized."""
