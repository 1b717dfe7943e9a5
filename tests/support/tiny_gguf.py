"""Writes a small transformers model as a GGUF file, the way converters do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import pre_tokenizers
from transformers import PreTrainedModel

from executor_service.kernels.weight_rows import WeightKind
from tests.support.gguf_blocks import random_blocks
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS

_GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_READ_ONLY = {
    GGMLQuantizationType.Q4_K: WeightKind.Q4_K,
    GGMLQuantizationType.Q6_K: WeightKind.Q6_K,
}


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    kinds: dict[str, GGMLQuantizationType] | None = None,
    fields: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> Path:
    """Matrices in `kind` or, where their name in the file is in `kinds`, in that; vectors in
    float32. Kinds that the gguf library only reads hold random blocks.

    `fields` are added; None values leave one out.

    `tensors` are added as they are, under the file's own names.
    """
    config = model.config
    architecture = config.model_type
    writer = GGUFWriter(path, architecture)
    values = _model_fields(config, architecture) | tokenizer_fields(config.vocab_size)
    for key, value in (values | (fields or {})).items():
        if value is not None:
            _add(writer, key, value)
    tied = config.tie_word_embeddings
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        stored = _stored_name(name)
        part = stored.split(".")[-2]
        if architecture == "llama" and part in heads:
            tensor = _permuted(tensor, heads[part])
        _add_tensor(writer, stored, tensor, (kinds or {}).get(stored, kind))
    for name, tensor in (tensors or {}).items():
        _add_tensor(writer, name, tensor, GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer_fields(vocab_size: int) -> dict[str, Any]:
    """A byte-level vocabulary with a few merges, ChatML, and unused tokens up to the size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġ Ġ", "1 2", "t h", "th e"]
    tokens = [*SPECIAL_TOKENS, *alphabet, *(merge.replace(" ", "") for merge in merges)]
    unused = [f"unused{i}" for i in range(vocab_size - len(tokens))]
    types = [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.token_type": types + [5] * len(unused),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _model_fields(config: Any, architecture: str) -> dict[str, Any]:
    values = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim if architecture != "qwen2" else None,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    return {f"{architecture}.{key}": value for key, value in values.items()}


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(
    writer: GGUFWriter, name: str, tensor: torch.Tensor, kind: GGMLQuantizationType
) -> None:
    values = tensor.detach().float().numpy()
    if values.ndim == 1 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    elif kind == GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    elif kind in _READ_ONLY:
        writer.add_tensor(name, random_blocks(_READ_ONLY[kind], *values.shape), raw_dtype=kind)
    else:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def _stored_name(name: str) -> str:
    if name in _GLOBAL:
        return _GLOBAL[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_PARTS[part]}.{kind}"


def _permuted(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from halves to pairs."""
    halves = tensor.view(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)
