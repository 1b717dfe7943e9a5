"""What a model of the Llama-shaped family looks like, read from a HF config.json.

Everything the family cannot do is refused here, by name, before any weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import ModelError
from executor_service.kernels.backend import KVShape
from executor_service.models.positions import (
    ARCHITECTURES,
    exact_positions,
    known_model_type,
    window_of,
    windowed_positions,
)
from executor_service.models.rope import ROPE_TYPES, RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of one model."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    """The longest sequence on which this, without `window`, is the model as published."""
    window: int | None
    """Positions up to its own that a token sees in every layer; None: all, or not in every one."""
    windowed_positions: int
    """The longest sequence for a backend that keeps to `window`."""
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} query heads do not divide into {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise ModelError(f"rotary embedding needs an even head_dim, not {self.head_dim}")

    def kv_shape(self, *, num_blocks: int, block_size: int) -> KVShape:
        """Of a pool for this model."""
        return KVShape(
            num_layers=self.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
        )


def from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Raises ModelError naming what is missing or not supported."""
    model_type = _model_type(config)
    _refuse_unknown_parts(config)
    try:
        hidden_size, num_heads = config["hidden_size"], config["num_attention_heads"]
        positions = config["max_position_embeddings"]
        bias = bool(config.get("attention_bias", False))
        return ModelConfig(
            model_type=model_type,
            vocab_size=config["vocab_size"],
            hidden_size=hidden_size,
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim")
            or _default_head_dim(model_type, hidden_size, num_heads),
            rms_norm_eps=config["rms_norm_eps"],
            rope=_rope(config, positions),
            max_position_embeddings=exact_positions(config, model_type, positions),
            window=window_of(config, model_type, positions),
            windowed_positions=windowed_positions(config, model_type, positions),
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            qkv_bias=model_type == "qwen2" or bias,
            output_bias=model_type != "qwen2" and bias,
            mlp_bias=model_type == "llama" and bool(config.get("mlp_bias", False)),
            qk_norm=model_type == "qwen3",
        )
    except KeyError as error:
        raise ModelError(f"config.json has no {error.args[0]!r}") from error


def _default_head_dim(model_type: str, hidden_size: int, num_heads: int) -> int:
    return 128 if model_type == "qwen3" else int(hidden_size) // int(num_heads)


def _model_type(config: Mapping[str, Any]) -> str:
    found = known_model_type(config)
    if found is not None:
        return found
    names = ", ".join(config.get("architectures") or [])
    named = names or config.get("model_type") or "an unnamed architecture"
    known = ", ".join(ARCHITECTURES)
    raise ModelError(f"{named} is not supported; supported are {known}")


def _refuse_unknown_parts(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"activation {activation!r} is not supported; only silu is")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unnamed")
        raise ModelError(f"weights quantized by {method!r} are not supported")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError("partial_rotary_factor is not supported")


def _rope(config: Mapping[str, Any], positions: int) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    fields = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    kind = fields.get("rope_type") or fields.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ModelError(f"rope type {kind!r} is not supported; supported are {ROPE_TYPES}")
    theta = fields.get("rope_theta") or config.get("rope_theta") or 10000.0
    names = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor")
    optional = (*names, "mscale", "mscale_all_dim", "truncate")
    try:
        return RopeConfig(
            theta=float(theta),
            rope_type=kind,
            factor=1.0 if kind == "default" else float(fields["factor"]),
            original_max_position=fields.get("original_max_position_embeddings") or positions,
            **{name: fields[name] for name in optional if fields.get(name) is not None},
        )
    except KeyError as error:
        raise ModelError(f"rope type {kind!r} without {error.args[0]!r}") from error
