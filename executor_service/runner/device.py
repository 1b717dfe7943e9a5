"""What differs between kinds of device when a runner is put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from common.plan import StepPlan, StepResult
from executor_service.config import ExecutorConfig
from executor_service.kernels.backend import Backend
from executor_service.kernels.weight_rows import WeightRules
from executor_service.memory.kv_pool import KVPool
from executor_service.models.config import ModelConfig
from executor_service.models.llama import LlamaModel
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.step_limits import StepLimits

B = TypeVar("B", bound=Backend)


class Runner(Protocol):
    """Executes plans, on one thread. Those of devices that are run ahead of launch them, too."""

    @property
    def spec(self) -> ExecutorSpec: ...

    @property
    def model_files(self) -> dict[str, bytes]: ...

    @property
    def pool(self) -> KVPool: ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Faults of single sequences are in the result, never raised."""
        ...

    def forget_samples(self) -> None: ...


class Device(Protocol[B]):
    """One device, its flags checked. `dtype` is that of weights, activations and pool."""

    @property
    def dtype(self) -> torch.dtype: ...

    def backend(self, model: ModelConfig, max_model_len: int) -> B:
        """May wait for kernels. ConfigError if there are none for what the flags ask."""
        ...

    def max_positions(self, model: ModelConfig) -> int:
        """The longest sequence on which the model is computed as published."""
        ...

    def free_bytes(self) -> int:
        """What weights or the pool could take now."""
        ...

    def smaller_weights(self, bytes_by: Callable[[WeightRules], int]) -> str:
        """For an error: what would make weights take less, which by some rules are `bytes_by`."""
        ...

    def pool_bytes(
        self, config: ExecutorConfig, model: LlamaModel, limits: StepLimits, backend: B
    ) -> int | None:
        """What the pool should take if no flag says so; None: by the sequences it is to hold.

        `model` is the loaded one, on `backend`.
        """
        ...

    def step_bytes(self, model: LlamaModel, limits: StepLimits, backend: B) -> int:
        """What is to be left beside weights and pool for steps."""
        ...

    def runner(
        self,
        spec: ExecutorSpec,
        model_files: dict[str, bytes],
        model: LlamaModel,
        pool: KVPool,
        backend: B,
    ) -> Runner: ...
