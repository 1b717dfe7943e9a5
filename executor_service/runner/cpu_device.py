"""The host as a device: float32, memory as the machine and its cgroup allow."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import cached_property

import torch

from common.errors import ConfigError
from common.kv_size import size_text
from executor_service.config import ExecutorConfig
from executor_service.cores import compute_threads
from executor_service.kernels import cpu_step
from executor_service.kernels.backend import Backend
from executor_service.kernels.cpu import CpuBackend
from executor_service.kernels.native import build
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.build import BuildError
from executor_service.kernels.native.library import Library, load
from executor_service.kernels.native.sampling import TokenDraws, draws_bytes
from executor_service.kernels.native.structs import Limits
from executor_service.kernels.weight_rows import WeightKind, WeightRules
from executor_service.memory.kv_pool import KVPool
from executor_service.memory.sizing import available_memory
from executor_service.models.config import ModelConfig
from executor_service.models.llama import LlamaModel
from executor_service.runner.model_runner import ModelRunner
from executor_service.runner.native_forward import NativeForward, forward_bytes
from executor_service.runner.native_sampler import NativeSampler
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.step_limits import StepLimits
from executor_service.runner.weight_choice import quantized, wants_blocks, weight_rules

log = logging.getLogger(__name__)


class CpuDevice:
    """`Device` on the host's cores: native kernels where they can be built, else torch."""

    dtype = torch.float32

    def __init__(self, config: ExecutorConfig, environ: Mapping[str, str] = os.environ) -> None:
        """ConfigError for flags that torch alone cannot serve, if it is known already that there
        will be no kernels; `backend` waits for them, and finds out for good."""
        name = config.kv_cache_dtype
        self._config = config
        self._environ = environ
        self._kv_dtype: torch.dtype | None = None if name == "auto" else getattr(torch, name)
        self._num_threads = compute_threads(config.threads)
        self._weight_rules = weight_rules(config)
        try:
            build.check(environ)
        except BuildError as error:
            _check_torch_serves(config, error)

    @cached_property
    def _library(self) -> Library | BuildError:
        """Why there is none, if so."""
        try:
            return load(self._environ)
        except BuildError as error:
            _check_torch_serves(self._config, error)
            log.warning(
                "no native kernels; torch's serve in float32, 2 to 5 times slower: %s", error
            )
            return error

    def backend(self, model: ModelConfig, max_model_len: int) -> Backend:
        if isinstance(self._library, BuildError):
            return CpuBackend()
        return NativeBackend(
            self._library,
            num_threads=self._num_threads,
            kv_dtype=self._kv_dtype,
            weight_rules=self._weight_rules,
        )

    def max_positions(self, model: ModelConfig) -> int:
        return model.max_position_embeddings

    def free_bytes(self) -> int:
        return available_memory()

    def smaller_weights(self, bytes_by: Callable[[WeightRules], int]) -> str:
        if isinstance(self._library, BuildError):
            return f"native kernels serve smaller ones, and there are none: {self._library}"
        needed = bytes_by(self._weight_rules)
        sizes = {kind: bytes_by(quantized(kind)) for kind in (WeightKind.INT8, WeightKind.Q4_0)}
        instead = " in place of --dtype float32" if self._config.dtype == "float32" else ""
        smaller = [
            f"--quantization {kind.label}{instead} makes them {size_text(size)}"
            for kind, size in sizes.items()
            if size < needed
        ]
        return ", ".join(smaller) or "no flag makes them much smaller"

    def pool_bytes(
        self, config: ExecutorConfig, model: LlamaModel, limits: StepLimits, backend: Backend
    ) -> int | None:
        return None

    def step_bytes(self, model: LlamaModel, limits: StepLimits, backend: Backend) -> int:
        if not isinstance(backend, NativeBackend):
            return _torch_step_bytes(model.config, limits)
        forward = forward_bytes(model, backend, limits.block_size, self._native(limits))
        return forward + draws_bytes(backend.library, model.config.vocab_size, self._num_threads)

    def runner(
        self,
        spec: ExecutorSpec,
        model_files: dict[str, bytes],
        model: LlamaModel,
        pool: KVPool,
        backend: Backend,
    ) -> ModelRunner:
        if not isinstance(backend, NativeBackend):
            return ModelRunner(spec, model_files, model, pool)
        _log_conversions(backend)
        native = NativeForward(model, backend, pool, self._native(spec))
        draws = TokenDraws(backend.library, spec.vocab_size, backend.num_threads)
        return ModelRunner(
            spec, model_files, model, pool, forward=native.forward, draw=NativeSampler(draws)
        )

    def _native(self, limits: StepLimits | ExecutorSpec) -> Limits:
        return Limits(
            max_tokens=limits.max_num_batched_tokens,
            max_chunks=limits.max_chunks,
            max_rows=limits.max_chunks,
            max_context=limits.max_model_len,
            num_threads=self._num_threads,
        )


def _torch_step_bytes(model: ModelConfig, limits: StepLimits) -> int:
    """A bound of what a step takes where torch computes it, operation by operation: results and
    copies of a layer; logits, sorted with their places and as probabilities; attention's gathers.
    """
    width = 6 * model.hidden_size + 4 * model.intermediate_size
    width += 4 * (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    activations = limits.max_num_batched_tokens * width
    logits = 6 * limits.max_samples * model.vocab_size
    attention = cpu_step.workspace_elements(
        limits.max_model_len, limits.block_size, model.num_heads, model.num_kv_heads, model.head_dim
    )
    return int(4 * (activations + logits + attention))


def _check_torch_serves(config: ExecutorConfig, why: BuildError) -> None:
    """ConfigError for what only native kernels have; `why` there are none."""
    if wants_blocks(config):
        flag = f"--quantization {config.quantization}"
    elif config.kv_cache_dtype not in ("auto", "float32"):
        flag = f"--kv-cache-dtype {config.kv_cache_dtype}"
    else:
        return
    raise ConfigError(f"{flag} needs the native kernels: {why}") from why


def _log_conversions(backend: NativeBackend) -> None:
    """What is not served in the kind that it is stored in, and that no flag asked for."""
    found = [
        f"{count} of {stored_as} to {kind.label}"
        for (stored_as, kind), count in sorted(backend.conversions.items())
    ]
    if found:
        log.info("weights converted", extra={"weights": ", ".join(found)})
