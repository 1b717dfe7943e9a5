from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor_service.runner.model_runner import ModelRunner
from tests.support.tiny_llama import save_tiny, tiny_model
from tests.support.tiny_runner import tiny_runner


@pytest.fixture(scope="package")
def shared_runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    return tiny_runner(save_tiny(tiny_model("llama"), tmp_path_factory.mktemp("model")))


@pytest.fixture
def runner(shared_runner: ModelRunner) -> Iterator[ModelRunner]:
    """Loaded once; every test gets it with a poisoned pool and no samples."""
    shared_runner.pool.poison(range(shared_runner.spec.num_blocks))
    yield shared_runner
    shared_runner.forget_samples()
