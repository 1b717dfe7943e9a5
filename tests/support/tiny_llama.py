"""Random small models of each family, as transformers builds and saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from tests.support.tiny_tokenizer import CHAT_TEMPLATE, tokenizer_json

VOCAB_SIZE = 320

_CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def tiny_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Weights are large enough that every part of the model shows in the logits."""
    torch.manual_seed(seed)
    sizes = _SIZES | ({"sliding_window": None} if family == "mistral" else {}) | changes
    config = _CONFIGS[family](**sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if "norm" in name else 0.12
            parameter.normal_(1.0 if "norm" in name else 0.0, scale)
    return model


def save_tiny(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """A HF directory with weights, config and tokenizer."""
    model.save_pretrained(directory, **options)
    (directory / "tokenizer.json").write_bytes(tokenizer_json(model.config.vocab_size))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return directory


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size]"""
    logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits
