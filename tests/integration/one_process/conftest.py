"""A random small model behind the whole of Octavo, all in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from executor_service.runner.model_runner import ModelRunner
from tests.support.one_process import HeldRunner, OneProcess, octavo
from tests.support.tiny_llama import save_tiny, tiny_model
from tests.support.tiny_runner import tiny_runner

NUM_BLOCKS = 600
MAX_MODEL_LEN = 8192


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """Loaded once; its pool is poisoned before each use."""
    model = tiny_model("llama", max_position_embeddings=MAX_MODEL_LEN)
    return tiny_runner(save_tiny(model, tmp_path_factory.mktemp("model")), num_blocks=NUM_BLOCKS)


@pytest.fixture
def runner(small_model: ModelRunner) -> ModelRunner:
    """Every block starts as NaN."""
    small_model.forget_samples()
    small_model.pool.poison(range(small_model.spec.num_blocks))
    return small_model


@pytest_asyncio.fixture
async def whole(runner: ModelRunner, tmp_path: Path) -> AsyncIterator[OneProcess]:
    """Eight places, 64 tokens a step."""
    held = HeldRunner(runner)
    async with octavo(tmp_path, held, max_num_seqs=8, max_num_batched_tokens=64) as started:
        yield started
