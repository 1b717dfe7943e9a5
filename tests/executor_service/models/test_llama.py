"""The model equals transformers on every member of the family, and itself in every chunking."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paged_model import WAYS, Load, load_native, load_native_operations
from tests.support.tiny_llama import VOCAB_SIZE, reference_logits, save_tiny, tiny_model

TOLERANCE = 2e-5
"""On logits of magnitude 5 to 20; float32 on both sides, summed in another order."""

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama-single-kv-head": ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "llama-nine-heads": (
        "llama",
        {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144},
    ),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
}


@pytest.fixture(params=WAYS)
def load(request: pytest.FixtureRequest) -> Load:
    return WAYS[request.param]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(load: Load, name: str, tmp_path: Path) -> None:
    family, changes = MODELS[name]
    model = tiny_model(family, seed=len(name), **changes)
    paged = load(save_tiny(model, tmp_path))
    for length in (1, 15, 16, 17, 130):
        tokens = prompt(length, length)
        difference = (paged.whole(tokens) - reference_logits(model, tokens)).abs().max()
        assert difference < TOLERANCE, length


@pytest.mark.parametrize("name", ROPES)
def test_logits_equal_transformers_under_scaled_rope(load: Load, name: str, tmp_path: Path) -> None:
    rope = ROPES[name] | {"rope_theta": 10000.0}
    model = tiny_model("llama", rope_parameters=rope)
    tokens = prompt(300)
    difference = load(save_tiny(model, tmp_path)).whole(tokens) - reference_logits(model, tokens)
    assert difference.abs().max() < TOLERANCE


def test_every_part_of_the_model_shows_in_the_logits(load: Load, tmp_path: Path) -> None:
    """Without this, the equality above could hold for a model that leaves something out."""
    model = tiny_model("qwen3")
    tokens = prompt(20)
    before = load(save_tiny(model, tmp_path / "a")).whole(tokens)
    for i, name in enumerate(dict(model.named_parameters())):
        changed = tiny_model("qwen3")
        with torch.no_grad():
            parameter = changed.get_parameter(name)
            parameter.mul_(1 + 0.5 * torch.randn_like(parameter))
        after = load(save_tiny(changed, tmp_path / f"b{i}")).whole(tokens)
        assert (after - before).abs().max() > 100 * TOLERANCE, name


@pytest.fixture(scope="module")
def nine_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, changes = MODELS["llama-nine-heads"]
    return save_tiny(tiny_model(family, **changes), tmp_path_factory.mktemp("model"))


def test_chunks_and_single_tokens_give_the_bits_of_one_pass(load: Load, nine_heads: Path) -> None:
    tokens = prompt(200)
    whole = load(nine_heads).whole(tokens)
    for lengths in ([64, 64, 64, 8], [1] * 200, [100, 1, 99], [16] * 12 + [8], [199, 1]):
        paged, start, parts = load(nine_heads), 0, []
        for length in lengths:
            parts += paged.step([(0, start, tokens[start : start + length])])
            start += length
        assert torch.equal(torch.cat(parts), whole), lengths


def test_neighbours_do_not_change_a_bit(load: Load, nine_heads: Path) -> None:
    prompts = [prompt(length, length) for length in (40, 3, 97, 64, 1, 130, 16, 17)]
    alone = [load(nine_heads).whole(tokens) for tokens in prompts]
    paged = load(nine_heads, num_sequences=len(prompts), max_len=160)
    together = paged.step(
        [(row, 0, tokens[:-1]) for row, tokens in enumerate(prompts) if tokens[:-1]]
    )
    firsts = iter(together)
    for tokens, logits in zip(prompts, alone, strict=True):
        if tokens[:-1]:
            assert torch.equal(next(firsts), logits[:-1])
    last = paged.step([(row, len(tokens) - 1, tokens[-1:]) for row, tokens in enumerate(prompts)])
    for found, logits in zip(last, alone, strict=True):
        assert torch.equal(found[0], logits[-1])


def test_decodes_among_prompt_chunks_do_not_change_a_bit(load: Load, nine_heads: Path) -> None:
    first, second = prompt(50, 1), prompt(90, 2)
    alone = [load(nine_heads).whole(tokens) for tokens in (first, second)]
    paged = load(nine_heads, num_sequences=2, max_len=96)
    paged.step([(0, 0, first[:20])])
    for i in range(30):
        chunk = second[i * 3 : i * 3 + 3]
        found = paged.step([(0, 20 + i, first[20 + i : 21 + i]), (1, i * 3, chunk)])
        assert torch.equal(found[0][0], alone[0][20 + i])
        assert torch.equal(found[1], alone[1][i * 3 : i * 3 + 3])


def test_sharded_weights_are_the_same_model(load: Load, tmp_path: Path) -> None:
    model = tiny_model("llama")
    tokens = prompt(20)
    one = load(save_tiny(model, tmp_path / "one")).whole(tokens)
    shards = save_tiny(model, tmp_path / "many", max_shard_size="50KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    assert torch.equal(load(shards).whole(tokens), one)


@pytest.mark.parametrize("name", ["llama-nine-heads", "llama-biases", "qwen3"])
def test_native_steps_have_the_bits_of_native_operations_in_any_team(
    name: str, tmp_path: Path
) -> None:
    family, changes = MODELS[name]
    path, tokens = save_tiny(tiny_model(family, **changes), tmp_path), prompt(150)
    whole = load_native_operations(path).whole(tokens)
    for num_threads in (1, 2, 3, 7):
        assert torch.equal(load_native(path, num_threads=num_threads).whole(tokens), whole)
