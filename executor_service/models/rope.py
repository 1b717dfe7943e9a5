"""Rotary position embedding: the frequencies of each scaling type, and the table of angles.

Types and formulas are those of transformers' `modeling_rope_utils`: none, linear, dynamic, llama3
(Llama 3.1), yarn (Peng et al., "YaRN", 2023). "dynamic" changes its base only beyond the original
length, and then by the longest sequence at hand, which would make a token depend on its batch: the
config limits such a model to its original length, where dynamic is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Angles are position * inverse frequency; fields beyond `theta` by type."""

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """yarn: scales cos and sin; None: 0.1 ln(factor) + 1, or by the two mscale fields."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    """yarn: round the borders of the ramp to whole dimensions."""
    divisors: tuple[float, ...] = ()
    """Of each frequency, as GGUF files spell llama3 scaling; empty: none."""


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim / 2] float32"""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.divisors:
        return plain / torch.tensor(rope.divisors)
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "llama3":
        return _llama3(rope, plain)
    if rope.rope_type == "yarn":
        return _yarn(rope, plain, head_dim)
    return plain


def magnitude(rope: RopeConfig) -> float:
    """What cos and sin are multiplied by."""
    if rope.rope_type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def angle_table(inverse: Tensor, scale: float, num_positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin, each [num_positions, head_dim / 2] float32."""
    angles = torch.arange(num_positions).float().unsqueeze(1) * inverse
    return angles.cos() * scale, angles.sin() * scale


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended."""
    length = rope.original_max_position
    wavelengths = 2 * math.pi / plain
    smooth = (length / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * (plain / rope.factor) + smooth * plain
    scaled = torch.where(wavelengths > length / rope.low_freq_factor, plain / rope.factor, blended)
    return torch.where(wavelengths < length / rope.high_freq_factor, plain, scaled)


def _yarn(rope: RopeConfig, plain: Tensor, head_dim: int) -> Tensor:
    """A ramp over the dimensions from extrapolation (kept) to interpolation (slowed)."""

    def dimension(rotations: float) -> float:
        length = rope.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return (plain / rope.factor) * (1 - keep) + plain * keep


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
