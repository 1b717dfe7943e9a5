"""What differs between kinds of device when a runner is put together."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch

from executor_service.config import ExecutorConfig
from executor_service.kernels.backend import Backend
from executor_service.memory.kv_pool import KVPool
from executor_service.models.config import ModelConfig
from executor_service.models.llama import LlamaModel
from executor_service.runner.model_runner import ModelRunner
from executor_service.runner.spec import ExecutorSpec

B = TypeVar("B", bound=Backend)


class Device(Protocol[B]):
    """One device, its flags checked. `dtype` is that of weights, activations and pool."""

    @property
    def dtype(self) -> torch.dtype: ...

    def backend(self, model: ModelConfig, max_model_len: int) -> B: ...

    def max_positions(self, model: ModelConfig) -> int:
        """The longest sequence on which the model is computed as published."""
        ...

    def free_bytes(self) -> int:
        """What the pool could take now."""
        ...

    def pool_bytes(self, config: ExecutorConfig, model: ModelConfig) -> int | None:
        """What the pool should take if no flag says so; None: by the sequences it is to hold."""
        ...

    def runner(
        self,
        spec: ExecutorSpec,
        model_files: dict[str, bytes],
        model: LlamaModel,
        pool: KVPool,
        backend: B,
    ) -> ModelRunner: ...
