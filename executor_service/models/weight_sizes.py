"""What weights will take, from the header of their checkpoint: nothing is read for it."""

from __future__ import annotations

from executor_service.kernels.backend import Backend
from executor_service.kernels.weight_rows import WeightRules
from executor_service.models.config import ModelConfig
from executor_service.models.layers import DOWN, GATE_UP, OUTPUT, QKV, names_of
from executor_service.models.weights import WeightSource


def weight_bytes(
    backend: Backend, config: ModelConfig, source: WeightSource, rules: WeightRules
) -> int:
    """The `num_bytes` of a LlamaModel that is packed by the rules: of all matrices, embedding and
    head among them. Norms and biases, below 0.1%, are left out. ModelError if a tensor is missing.
    """
    embedding = source.header("model.embed_tokens.weight")
    total = backend.packed_bytes([embedding], rules.embeddings)
    if config.tie_word_embeddings:
        total += backend.tied_head_bytes(embedding)
    else:
        total += backend.packed_bytes([source.header("lm_head.weight")], rules.embeddings)
    for index in range(config.num_layers):
        for stack in (QKV, OUTPUT, GATE_UP, DOWN):
            rows = [source.header(f"{name}.weight") for name in names_of(index, stack)]
            total += backend.packed_bytes(rows, rules.linears)
    return total
