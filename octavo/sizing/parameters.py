"""How many parameters a model has, without reading its weights."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import ModelError

_EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")


def stored_parameters(folder: Path) -> int:
    """Elements of all tensors in the folder's safetensors, by their headers; 0 without any."""
    return sum(_elements(path) for path in sorted(folder.glob("*.safetensors")))


def _elements(path: Path) -> int:
    """The header is JSON behind its own length: name -> dtype, shape, offsets."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ModelError(f"{path} is truncated")
            header = json.loads(file.read(length))
        return sum(math.prod(t["shape"]) for name, t in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def estimated_parameters(config: Mapping[str, Any]) -> int | None:
    """Of a dense Llama-shaped model, norms and biases left out (under 0.1%); None for others."""
    if any(config.get(name) for name in _EXPERT_FIELDS):
        return None
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        head_dim = config.get("head_dim") or hidden // heads
        attention = 2 * hidden * head_dim * (heads + kv_heads)
        mlp = 3 * hidden * config["intermediate_size"]
        embeddings = config["vocab_size"] * hidden
        if not config.get("tie_word_embeddings", False):
            embeddings *= 2
        return int(embeddings + config["num_hidden_layers"] * (attention + mlp))
    except KeyError:
        return None
