from __future__ import annotations

from typing import Any

import pytest

from common.errors import ModelError
from executor_service.models.config import from_hf

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}


def test_absent_fields_take_the_published_defaults() -> None:
    config = from_hf(LLAMA)
    assert (config.head_dim, config.rope.theta, config.rope.rope_type) == (16, 10000.0, "default")
    assert not config.tie_word_embeddings
    assert from_hf(LLAMA | {"num_key_value_heads": None}).num_kv_heads == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
    ],
)
def test_both_spellings_of_rope_scaling_are_read(fields: dict[str, Any]) -> None:
    rope = from_hf(LLAMA | fields).rope
    assert (rope.theta, rope.rope_type, rope.factor) == (5e5, "linear", 2.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None, "model_type": "mamba"}, "mamba"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "yarn"}}, "factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "4 query heads"),
    ],
)
def test_what_the_family_cannot_do_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        from_hf(LLAMA | changes)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "rms_norm_eps"])
def test_a_missing_size_is_named(field: str) -> None:
    with pytest.raises(ModelError, match=field):
        from_hf({key: value for key, value in LLAMA.items() if key != field})


def test_a_sliding_window_limits_the_length_to_where_it_changes_nothing() -> None:
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"]}
    assert from_hf(mistral | {"sliding_window": None}).max_position_embeddings == 2048
    assert from_hf(mistral | {"sliding_window": 512}).max_position_embeddings == 512
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512}
    assert from_hf(qwen).max_position_embeddings == 2048
    assert from_hf(qwen | {"use_sliding_window": True}).max_position_embeddings == 512


def test_a_window_in_every_layer_is_told_to_backends_that_have_windows() -> None:
    mistral = from_hf(LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 512})
    assert (mistral.window, mistral.windowed_positions) == (512, 2048)
    wide = from_hf(LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096})
    assert (wide.window, wide.windowed_positions) == (None, 2048)
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512}
    some = from_hf(qwen | {"use_sliding_window": True})
    assert (some.window, some.windowed_positions) == (None, 512)


def test_dynamic_scaling_is_not_used_beyond_the_original_length() -> None:
    rope = {"type": "dynamic", "factor": 4.0}
    assert from_hf(LLAMA | {"rope_scaling": rope}).max_position_embeddings == 2048
