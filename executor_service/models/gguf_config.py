"""The HF config of a GGUF file, so that one reader (`config.from_hf`) decides what is supported."""

from __future__ import annotations

from typing import Any

from common.errors import ModelError
from executor_service.models.gguf_fields import token_id
from executor_service.models.gguf_file import GGUFFile

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def hf_config(file: GGUFFile) -> dict[str, Any]:
    """Raises ModelError naming the architecture, or the field that is missing."""
    fields = file.fields
    kind = fields.get("general.architecture")
    if kind not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelError(f"GGUF architecture {kind!r} is not supported; supported are {known}")
    if f"{kind}.expert_count" in fields:
        raise ModelError(f"{file.path} is a mixture of experts, which is not supported")
    try:
        return _config(file, fields, kind)
    except KeyError as error:
        raise ModelError(f"{file.path} has no field {error.args[0]!r}") from error


def _config(file: GGUFFile, fields: dict[str, Any], kind: str) -> dict[str, Any]:
    num_heads = fields[f"{kind}.attention.head_count"]
    hidden_size = fields[f"{kind}.embedding_length"]
    config = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": fields[f"{kind}.feed_forward_length"],
        "num_hidden_layers": fields[f"{kind}.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.get(f"{kind}.attention.head_count_kv", num_heads),
        "head_dim": fields.get(f"{kind}.attention.key_length", hidden_size // num_heads),
        "rms_norm_eps": fields[f"{kind}.attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": fields[f"{kind}.context_length"],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": kind != "qwen2" and "blk.0.attn_q.bias" in file.tensors,
        "hidden_act": "silu",
        "rope_parameters": _rope(fields, kind),
        "torch_dtype": "float32",
    }
    for name in ("bos", "eos"):
        if (found := token_id(fields, name)) is not None:
            config[f"{name}_token_id"] = found
    return config


def _rope(fields: dict[str, Any], kind: str) -> dict[str, Any]:
    prefix = f"{kind}.rope.scaling."
    scaling = fields.get(prefix + "type", "none")
    rope: dict[str, Any] = {
        "rope_theta": fields.get(f"{kind}.rope.freq_base", 10000.0),
        "rope_type": "default" if scaling == "none" else scaling,
    }
    if scaling != "none":
        rope["factor"] = fields[prefix + "factor"]
        original = fields.get(prefix + "original_context_length")
        if original:
            rope["original_max_position_embeddings"] = original
    return rope
