"""A whole model on the GPU backend: equal to transformers, through every kernel."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_service.models.checkpoint import open_checkpoint
from tests.support.cuda_backends import make_backend
from tests.support.paged_model import PagedModel
from tests.support.tiny_llama import VOCAB_SIZE, reference_logits, save_tiny, tiny_model

TOLERANCE = 1e-4
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped heads": (
        "llama",
        {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
    ),
    "norms of q and k": ("qwen3", {"head_dim": 32}),
    "a window": ("mistral", {"sliding_window": 18}),
}


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(name: str, device: torch.device, tmp_path: Path) -> None:
    """Three sequences in one pool of NaN: prompts whole and in chunks, then all decode."""
    family, changes = MODELS[name]
    model = tiny_model(family, **changes)
    checkpoint = open_checkpoint(save_tiny(model, tmp_path))
    backend = make_backend(
        device,
        torch.float32,
        num_heads=checkpoint.config.num_heads,
        num_kv_heads=checkpoint.config.num_kv_heads,
        head_dim=checkpoint.config.head_dim,
        window=checkpoint.config.window,
    )
    paged = PagedModel(checkpoint, backend, num_sequences=3, max_len=64)
    sequences = [prompt(length, length) for length in (47, 20, 4)]
    expected = [reference_logits(model, tokens) for tokens in sequences]
    done = [0, 0, 0]
    for lengths in ([20, 19, 3], [26, 0, 0], [1, 1, 1]):
        spans = [
            (row, done[row], sequences[row][done[row] : done[row] + length])
            for row, length in enumerate(lengths)
            if length
        ]
        for (row, start, tokens), logits in zip(spans, paged.step(spans), strict=True):
            wanted = expected[row][start : start + len(tokens)]
            assert (logits.cpu() - wanted).abs().max() < TOLERANCE, (row, start)
            done[row] += len(tokens)
    assert done == [47, 20, 4]
