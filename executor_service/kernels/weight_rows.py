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
        wanted, values = self.floats, rows
        if isinstance(values, Dequantized):
            wanted = self.floats if self.others is None else self.others
            values = values.values
        for kind in (wanted, WeightKind.INT8):
            if wanted is not WeightKind.FLOAT32 and values.shape[1] % kind.block_size == 0:
                return kind
        return WeightKind.FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRules:
    linears: WeightRule
    embeddings: WeightRule
    """Of the embedding and the head, which suffer more from few bits."""


_EXACT = WeightRule(kept=frozenset(), floats=WeightKind.FLOAT32)
EXACT_WEIGHTS = WeightRules(linears=_EXACT, embeddings=_EXACT)
"""Floats, and all blocks dequantized."""
