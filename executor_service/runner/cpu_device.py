"""The host as a device: float32, memory as the machine and its cgroup allow."""

from __future__ import annotations

import torch

from common.errors import ConfigError
from executor_service.config import ExecutorConfig
from executor_service.kernels.cpu import CpuBackend
from executor_service.memory.kv_pool import KVPool
from executor_service.memory.sizing import available_memory
from executor_service.models.config import ModelConfig
from executor_service.models.llama import LlamaModel
from executor_service.runner.model_runner import ModelRunner
from executor_service.runner.spec import ExecutorSpec


class CpuDevice:
    """`Device` on the host's cores."""

    dtype = torch.float32

    def __init__(self, config: ExecutorConfig) -> None:
        for flag, value in (("--dtype", config.dtype), ("--kv-cache-dtype", config.kv_cache_dtype)):
            if value not in ("auto", "float32"):
                raise ConfigError(f"{flag} {value}: the CPU computes in float32 only")

    def backend(self, model: ModelConfig, max_model_len: int) -> CpuBackend:
        return CpuBackend()

    def free_bytes(self) -> int:
        return available_memory()

    def pool_bytes(self, config: ExecutorConfig, model: ModelConfig) -> int | None:
        return None

    def runner(
        self,
        spec: ExecutorSpec,
        model_files: dict[str, bytes],
        model: LlamaModel,
        pool: KVPool,
        backend: CpuBackend,
    ) -> ModelRunner:
        return ModelRunner(spec, model_files, model, pool)
