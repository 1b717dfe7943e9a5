"""One NVIDIA GPU as a device: Triton kernels, captured graphs for decodes, sampling on the chip.

This module imports triton, so nothing but `load` imports it, and only for `--device cuda`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from common.errors import ConfigError
from executor_service.config import ExecutorConfig
from executor_service.kernels.cuda import CudaBackend, arch_of
from executor_service.kernels.device_stream import CudaStream, DeviceStream
from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import AMPERE, AttentionShape
from executor_service.kernels.transfers import Uploads
from executor_service.kernels.weight_rows import WeightRules
from executor_service.memory.gpu_memory import RESERVE_BYTES, CudaMeter, MemoryMeter, pool_bytes
from executor_service.memory.kv_pool import KVPool
from executor_service.models.config import ModelConfig
from executor_service.models.llama import LlamaModel
from executor_service.runner.cuda_graphs import (
    Capture,
    CudaCapture,
    DecodeGraphs,
    bucket_sizes,
)
from executor_service.runner.device_runner import DeviceRunner
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.step_limits import StepLimits
from executor_service.runner.trial_run import Trial

log = logging.getLogger(__name__)

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
        stream: DeviceStream,
        new_capture: Callable[[], Capture],
        meter: MemoryMeter,
    ) -> None:
        """kv_kind: of the pool; None is that of `dtype`. new_capture: a trial's graphs share no
        memory with those that serve."""
        self.dtype = dtype
        self._kv_kind = kv_kind
        self._meter = meter
        self._device = device
        self._stream = stream
        self._uploads = Uploads(stream)
        self._new_capture = new_capture

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
        arch = arch_of(self._device)
        send = self._uploads.send
        return CudaBackend(self._device, self.dtype, shape, arch, self._kv_kind, send)

    def max_positions(self, model: ModelConfig) -> int:
        return model.windowed_positions

    def free_bytes(self) -> int:
        return self._meter.read().free

    def smaller_weights(self, bytes_by: Callable[[WeightRules], int]) -> str:
        if self.dtype == torch.float32:
            return "--dtype bfloat16 halves them"
        return "no flag makes them smaller on a GPU"

    def pool_bytes(
        self, config: ExecutorConfig, model: LlamaModel, limits: StepLimits, backend: CudaBackend
    ) -> int | None:
        trial = Trial(
            limits, model, backend, stream=self._stream, uploads=self._uploads, meter=self._meter
        )
        try:
            needs = trial.measure(bucket_sizes(limits.max_chunks), self._new_capture())
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                "the largest step does not fit beside the weights: lower --max-num-batched-tokens"
                f" or --max-num-seqs ({error})"
            ) from error
        del trial
        memory = self._meter.read()
        log.info("the largest step was run", extra={**needs._asdict(), **memory._asdict()})
        return pool_bytes(config.gpu_memory_utilization, needs, memory)

    def step_bytes(self, model: LlamaModel, limits: StepLimits, backend: CudaBackend) -> int:
        # `pool_bytes` has kept what the trial took; beside a pool by flags nothing was tried.
        return RESERVE_BYTES

    def runner(
        self,
        spec: ExecutorSpec,
        model_files: dict[str, bytes],
        model: LlamaModel,
        pool: KVPool,
        backend: CudaBackend,
    ) -> DeviceRunner:
        sizes = bucket_sizes(spec.max_chunks)
        graphs = DecodeGraphs(model, backend, pool.storage, sizes, self._new_capture())
        return DeviceRunner(
            spec,
            model_files,
            model,
            pool,
            forward=graphs.forward,
            stream=self._stream,
            uploads=self._uploads,
        )


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
        stream=CudaStream(device),
        new_capture=CudaCapture,
        meter=CudaMeter(device),
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
