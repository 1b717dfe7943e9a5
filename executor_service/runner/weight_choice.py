"""What weights are packed as, from --dtype and --quantization."""

from __future__ import annotations

from executor_service.config import ExecutorConfig
from executor_service.kernels.weight_rows import (
    EXACT_WEIGHTS,
    WeightKind,
    WeightRule,
    WeightRules,
)

_BLOCK_KINDS = frozenset(WeightKind) - {WeightKind.FLOAT32, WeightKind.INT8}
_FINE_KINDS = frozenset((WeightKind.Q8_0, WeightKind.Q6_K))
"""Kinds in which embeddings stay, whatever the linears are to be."""


def weight_rules(config: ExecutorConfig) -> WeightRules:
    """For a backend that multiplies by every kind."""
    if config.dtype == "float32" or config.quantization == "none":
        return EXACT_WEIGHTS
    if config.quantization == "auto":
        stored = WeightRule(kept=_BLOCK_KINDS, floats=WeightKind.FLOAT32, others=WeightKind.INT8)
        return WeightRules(linears=stored, embeddings=stored)
    return quantized(WeightKind[config.quantization.upper()])


def quantized(kind: WeightKind) -> WeightRules:
    """All linears in one kind; embeddings of models with 4-bit linears have 8 bits."""
    fine = kind in _FINE_KINDS or kind is WeightKind.INT8
    return WeightRules(
        linears=WeightRule(kept=frozenset((kind,)), floats=kind),
        embeddings=WeightRule(
            kept=frozenset((kind,)) if fine else _FINE_KINDS | {kind},
            floats=kind if fine else WeightKind.INT8,
        ),
    )


def wants_blocks(config: ExecutorConfig) -> bool:
    """Whether a kind was asked for that only the native kernels have."""
    return config.quantization not in ("auto", "none")
