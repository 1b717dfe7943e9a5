"""Frequencies and magnitudes are those of transformers for every scaling type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import LlamaConfig

from executor_service.models.config import from_hf
from executor_service.models.rope import angle_table, inverse_frequencies, magnitude

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
TYPES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 3.0},
    LLAMA3,
    YARN,
    YARN | {"beta_fast": 16, "beta_slow": 2},
    YARN | {"attention_factor": 0.7},
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.8},
    YARN | {"truncate": False},
]


@pytest.mark.parametrize("rope", TYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_scaling_equals_transformers(rope: dict[str, Any], head_dim: int, theta: float) -> None:
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters=rope | {"rope_theta": theta},
    )
    expected, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    ours = from_hf(config.to_dict()).rope
    torch.testing.assert_close(inverse_frequencies(ours, head_dim), expected, rtol=1e-6, atol=0)
    assert magnitude(ours) == pytest.approx(scale)


def test_the_table_holds_cos_and_sin_of_every_position() -> None:
    cos, sin = angle_table(torch.tensor([1.0, 0.25]), 2.0, 5)
    angles = torch.arange(5).unsqueeze(1) * torch.tensor([1.0, 0.25])
    torch.testing.assert_close(cos, angles.cos() * 2)
    torch.testing.assert_close(sin, angles.sin() * 2)
