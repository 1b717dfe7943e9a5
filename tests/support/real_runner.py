"""The real model, loaded once for all tests of a process: half a gigabyte and some seconds."""

from __future__ import annotations

import os
from functools import cache

from executor_service.config import ExecutorConfig
from executor_service.runner.load import load_runner
from executor_service.runner.model_runner import ModelRunner

NUM_BLOCKS = 640


@cache
def smollm2_runner() -> ModelRunner:
    """SmolLM2-135M-Instruct in float32 on all cores it may use; KV for 10,240 tokens."""
    # Tests that run side by side share the cores: threads that wait for each other would cost more.
    threads = 1 if "PYTEST_XDIST_WORKER" in os.environ else None
    config = ExecutorConfig(
        threads=threads,
        model="smollm2-135m",
        dtype="float32",
        device="cpu",
        num_blocks=NUM_BLOCKS,
        max_num_seqs=64,
        max_num_batched_tokens=512,
    )
    return load_runner(config, lambda done, total, what: None)
