"""The parts of a transformer layer, over a backend's kernels. Weights are packed at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from executor_service.kernels.backend import Angles, Backend, KVStorage, PackedWeight
from executor_service.kernels.weight_rows import Dequantized, Rows, WeightRule
from executor_service.models.config import ModelConfig
from executor_service.models.weights import WeightSource

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUTPUT = ("self_attn.o_proj",)
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = ("mlp.down_proj",)
"""Projections of a layer that are one Linear each."""
_QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What every layer of one step reads."""

    kv: KVStorage
    angles: Angles
    step: Any
    """The backend's own, from `begin_step`."""


class Linear:
    """One or several projections of the same input, stacked by rows."""

    def __init__(self, backend: Backend, weight: PackedWeight, bias: Tensor | None) -> None:
        self._backend = backend
        self.weight = weight
        self.bias = None if bias is None else bias.to(backend.device, backend.dtype)
        self.num_bytes = backend.weight_bytes(weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self._backend.linear(x, self.weight, self.bias)


class RMSNorm:
    def __init__(self, backend: Backend, weight: Tensor, eps: float) -> None:
        self._backend = backend
        self.weight = weight.to(backend.device, backend.dtype)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return self._backend.rms_norm(x, self.weight, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        """Adds x to `residual` in place; returns the norm of the sum."""
        return self._backend.add_rms_norm(x, residual, self.weight, self.eps)


class Attention:
    """Grouped-query self-attention over the paged pool."""

    def __init__(
        self, backend: Backend, config: ModelConfig, source: WeightSource, index: int
    ) -> None:
        self._backend = backend
        self._index = index
        self._head_dim = config.head_dim
        self._query_sizes = [config.num_heads, config.num_kv_heads]
        self._sizes = [config.num_heads + config.num_kv_heads, config.num_kv_heads]
        self.scale = config.head_dim**-0.5
        self.qkv = stacked(backend, source, names_of(index, QKV), config.qkv_bias)
        self.output = stacked(backend, source, names_of(index, OUTPUT), config.output_bias)
        self.num_bytes = self.qkv.num_bytes + self.output.num_bytes
        self.norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.qk_norm:
            q_norm, k_norm = (
                RMSNorm(backend, source.tensor(f"{name}.weight"), config.rms_norm_eps)
                for name in names_of(index, _QK_NORMS)
            )
            self.norms = q_norm, k_norm

    def __call__(self, x: Tensor, inputs: StepInputs) -> Tensor:
        """[num_tokens, hidden_size] -> the same"""
        heads = self.qkv(x).view(x.shape[0], -1, self._head_dim)
        qk, v = heads.split(self._sizes, dim=1)
        if self.norms is not None:
            q, k = qk.split(self._query_sizes, dim=1)
            qk = torch.cat((self.norms[0](q), self.norms[1](k)), dim=1)
        kv, step = inputs.kv, inputs.step
        q = self._backend.rotary_write_kv(qk, v, inputs.angles, kv, self._index, step)
        mixed = self._backend.attention(q, inputs.kv, self._index, self.scale, inputs.step)
        return self.output(mixed.view(x.shape[0], -1))


class FeedForward:
    """The gated MLP."""

    def __init__(
        self, backend: Backend, config: ModelConfig, source: WeightSource, index: int
    ) -> None:
        self._backend = backend
        self.gate_up = stacked(backend, source, names_of(index, GATE_UP), config.mlp_bias)
        self.down = stacked(backend, source, names_of(index, DOWN), config.mlp_bias)
        self.num_bytes = self.gate_up.num_bytes + self.down.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._backend.silu_mul(self.gate_up(x)))


def names_of(index: int, parts: Sequence[str]) -> list[str]:
    """In a checkpoint, of parts of layer `index`."""
    return [f"model.layers.{index}.{part}" for part in parts]


def stored_rows(source: WeightSource, name: str, rule: WeightRule) -> Rows:
    """As they are stored, if the rule keeps that kind."""
    blocks = source.blocks(name)
    if blocks is not None and blocks.kind in rule.kept:
        return blocks
    values = source.tensor(name)
    if rule.others is None:
        return values
    stored_as = source.header(name).stored_as
    return values if stored_as is None else Dequantized(values=values, stored_as=stored_as)


def stacked(backend: Backend, source: WeightSource, names: Sequence[str], bias: object) -> Linear:
    """One Linear of the named projections; `bias` says whether they have one."""
    rule = backend.weight_rules.linears
    rows = [stored_rows(source, f"{name}.weight", rule) for name in names]
    weight = backend.prepare_weight(rows, rule)
    if not bias:
        return Linear(backend, weight, None)
    return Linear(backend, weight, torch.cat([source.tensor(f"{name}.bias") for name in names]))
