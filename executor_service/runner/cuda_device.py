"""One NVIDIA GPU as a device: Triton kernels, captured graphs for decodes, sampling on the chip.

This module imports triton, so nothing but `load` imports it, and only for `--device cuda`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from common.errors import ConfigError
from executor_service.config import ExecutorConfig
from executor_service.kernels.cuda import CudaBackend, arch_of
from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import AMPERE, AttentionShape
from executor_service.memory.gpu_memory import Memory, pool_bytes, read_memory
from executor_service.memory.kv_pool import KVPool
from executor_service.models.config import ModelConfig
from executor_service.models.llama import LlamaModel
from executor_service.runner.cuda_graphs import (
    Capture,
    CudaCapture,
    DecodeGraphs,
    bucket_sizes,
)
from executor_service.runner.device_sampler import sample_on_device
from executor_service.runner.model_runner import ModelRunner, with_logits
from executor_service.runner.spec import ExecutorSpec

_DTYPES = {
    "auto": torch.bfloat16,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_ALIASES = {"fp8": KVKind.FP8_E4M3.value}


class CudaDevice:
    """`Device` for tensors that Triton kernels can be launched on."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        kv_kind: KVKind | None = None,
        *,
        capture: Capture,
        memory: Callable[[], Memory],
    ) -> None:
        """kv_kind: of the pool; None is that of `dtype`."""
        self.dtype = dtype
        self._kv_kind = kv_kind
        self._memory = memory
        self._device = device
        self._capture = capture

    def backend(self, model: ModelConfig, max_model_len: int) -> CudaBackend:
        window = model.window
        shape = AttentionShape(
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            max_context=max_model_len,
            # One that nothing is outside of costs a comparison of every score.
            window=window if window is not None and window < max_model_len else None,
        )
        return CudaBackend(self._device, self.dtype, shape, arch_of(self._device), self._kv_kind)

    def max_positions(self, model: ModelConfig) -> int:
        return model.windowed_positions

    def free_bytes(self) -> int:
        return self._memory().free

    def pool_bytes(self, config: ExecutorConfig, model: ModelConfig) -> int | None:
        return pool_bytes(config, model, self.dtype, self._memory())

    def runner(
        self,
        spec: ExecutorSpec,
        model_files: dict[str, bytes],
        model: LlamaModel,
        pool: KVPool,
        backend: CudaBackend,
    ) -> ModelRunner:
        sizes = bucket_sizes(min(spec.max_rows, spec.max_num_batched_tokens))
        graphs = DecodeGraphs(model, backend, pool.storage, sizes, self._capture)
        forward = with_logits(graphs.forward, model.logits)
        return ModelRunner(spec, model_files, model, pool, forward=forward, draw=sample_on_device)


def open_cuda(config: ExecutorConfig) -> CudaDevice:
    """The first visible GPU; CUDA_VISIBLE_DEVICES says which that is. Raises ConfigError."""
    if not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: this torch sees no GPU; check the driver and that torch is a CUDA build"
        )
    device = torch.device("cuda")
    if arch_of(device) < AMPERE:
        raise ConfigError(
            "--device cuda: the kernels are built for compute capability 8.0 and later"
        )
    kv_kind = kv_kind_of(config)
    torch.cuda.set_device(device)
    return CudaDevice(
        device,
        _DTYPES[config.dtype],
        kv_kind,
        capture=CudaCapture(),
        memory=partial(read_memory, device),
    )


def kv_kind_of(config: ExecutorConfig) -> KVKind | None:
    """None for auto. ConfigError if the pool would take memory for digits that nothing has."""
    name = config.kv_cache_dtype
    if name == "float32" and config.dtype != "float32":
        raise ConfigError(
            "--kv-cache-dtype float32: on a GPU beside --dtype float32 alone; "
            "auto keeps every digit of the model's dtype"
        )
    return None if name == "auto" else KVKind(_ALIASES.get(name, name))
