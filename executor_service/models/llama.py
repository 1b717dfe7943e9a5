"""The Llama-shaped family: Llama, SmolLM, Mistral, Qwen2, Qwen3, and whatever else is the same.

Differences between members (biases, norms of q and k, tied embeddings) are fields of
`ModelConfig`, not branches by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from executor_service.kernels.backend import Angles, Backend, KVStorage, StepLayout
from executor_service.models.config import ModelConfig
from executor_service.models.layers import (
    Attention,
    FeedForward,
    Linear,
    RMSNorm,
    StepInputs,
    stored_rows,
)
from executor_service.models.rope import angle_table, inverse_frequencies, magnitude
from executor_service.models.weights import Progress, WeightSource


class Layer:
    def __init__(
        self, backend: Backend, config: ModelConfig, source: WeightSource, index: int
    ) -> None:
        prefix = f"model.layers.{index}."
        eps = config.rms_norm_eps
        before, after = "input_layernorm.weight", "post_attention_layernorm.weight"
        self.attention_norm = RMSNorm(backend, source.tensor(prefix + before), eps)
        self.attention = Attention(backend, config, source, index)
        self.feed_forward_norm = RMSNorm(backend, source.tensor(prefix + after), eps)
        self.feed_forward = FeedForward(backend, config, source, index)
        self.num_bytes = self.attention.num_bytes + self.feed_forward.num_bytes


class LlamaModel:
    """Weights on one device; computes hidden states and logits. Holds no sequence's state."""

    def __init__(
        self,
        backend: Backend,
        config: ModelConfig,
        source: WeightSource,
        max_positions: int,
        progress: Progress,
    ) -> None:
        self._backend = backend
        self.config = config
        rule = backend.weight_rules.embeddings
        embedding = stored_rows(source, "model.embed_tokens.weight", rule)
        self.embedding = backend.prepare_embedding(embedding)
        self.layers: list[Layer] = []
        for index in range(config.num_layers):
            progress(index, config.num_layers, "weights")
            self.layers.append(Layer(backend, config, source, index))
        norm = source.tensor("model.norm.weight")
        self.norm = RMSNorm(backend, norm, config.rms_norm_eps)
        if config.tie_word_embeddings:
            head = backend.prepare_tied_head(self.embedding)
        else:
            head = backend.prepare_weight([stored_rows(source, "lm_head.weight", rule)], rule)
        self.head = Linear(backend, head, None)
        inverse = inverse_frequencies(config.rope, config.head_dim)
        cos, sin = angle_table(inverse, magnitude(config.rope), max_positions)
        self.cos, self.sin = cos.to(backend.device), sin.to(backend.device)
        self.num_bytes = backend.weight_bytes(self.embedding)
        self.num_bytes += 0 if head is self.embedding else self.head.num_bytes
        self.num_bytes += sum(layer.num_bytes for layer in self.layers)
        progress(config.num_layers, config.num_layers, "weights")

    def forward(
        self, token_ids: Tensor, positions: Tensor, layout: StepLayout, kv: KVStorage
    ) -> Tensor:
        """token_ids, positions: [num_tokens] int64 -> normed hidden states [num_tokens, hidden].

        Writes the tokens' K and V to the pool. Inputs may be on the host.
        """
        device = self._backend.device
        step = self._backend.begin_step(layout, kv)
        return self.forward_step(token_ids.to(device), positions.to(device), step, kv)

    def forward_step(
        self, token_ids: Tensor, positions: Tensor, step: Any, kv: KVStorage
    ) -> Tensor:
        """`forward` over what is on the device already; `step` is the backend's own."""
        inputs = StepInputs(
            kv=kv,
            angles=Angles(self.cos.index_select(0, positions), self.sin.index_select(0, positions)),
            step=step,
        )
        residual = self._backend.embed(self.embedding, token_ids)
        x = torch.zeros_like(residual)
        for layer in self.layers:
            x = layer.attention(layer.attention_norm.after_adding(x, residual), inputs)
            x = layer.feed_forward(layer.feed_forward_norm.after_adding(x, residual))
        return self.norm.after_adding(x, residual)

    def logits(self, hidden: Tensor) -> Tensor:
        """[num_rows, hidden] -> [num_rows, vocab_size] float32"""
        return self.head(hidden).float()
