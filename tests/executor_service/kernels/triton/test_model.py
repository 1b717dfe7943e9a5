"""A whole model on the GPU backend: equal to transformers, through every kernel."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.kv_size import GIB
from common.plan import SamplingParams
from executor_service.config import ExecutorConfig
from executor_service.memory.gpu_memory import Memory
from executor_service.models.checkpoint import open_checkpoint
from executor_service.runner.cuda_device import CudaDevice
from executor_service.runner.cuda_graphs import Capture
from executor_service.runner.load import load_on, load_runner
from executor_service.runner.model_runner import ModelRunner
from tests.support.cuda_backends import make_backend
from tests.support.paged_model import PagedModel
from tests.support.tiny_llama import VOCAB_SIZE, reference_logits, save_tiny, tiny_model
from tests.support.tiny_runner import generate

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


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_model("llama"), tmp_path_factory.mktemp("model"))


def config_of(directory: Path, **changes: Any) -> ExecutorConfig:
    fields: dict[str, Any] = {"model": str(directory), "threads": 1, "num_blocks": 96}
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 512, "max_model_len": 128}
    return ExecutorConfig(**(fields | limits | changes))


@pytest.fixture
def runner_on_device(
    directory: Path, device: torch.device, capture: Capture
) -> Callable[[], ModelRunner]:
    def load() -> ModelRunner:
        opened = CudaDevice(
            device, torch.float32, capture=capture, memory=lambda: Memory(free=GIB, total=GIB)
        )
        return load_on(opened, config_of(directory), lambda done, total, what: None)

    return load


def test_a_runner_generates_what_the_cpu_generates(
    directory: Path, runner_on_device: Callable[[], ModelRunner], capture: Capture
) -> None:
    """Through plans, captured decodes and draws on the device, greedy and sampled."""
    requests = [
        (prompt(21, 1), SamplingParams(temperature=0.0)),
        (prompt(5, 3), SamplingParams(top_k=40, repetition_penalty=1.3, seed=2**63 + 5)),
    ]
    on_cpu = load_runner(config_of(directory), lambda done, total, what: None)
    runner = runner_on_device()
    assert runner.spec.dtype == "float32"
    assert generate(runner, requests, 3, chunk=12) == generate(on_cpu, requests, 3, chunk=12)
