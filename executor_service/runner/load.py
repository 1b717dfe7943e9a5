"""Builds a runner from flags: files, weights, pool, warm-up."""

from __future__ import annotations

import importlib.util
import logging
from array import array
from collections.abc import Callable
from typing import NamedTuple

import torch

from common.errors import ConfigError
from common.kv_size import block_bytes, kv_bytes_per_token, kv_element_bytes, size_text
from common.plan import TOKEN_TYPECODE, SamplingParams, SequenceId, SequenceSpec, StepPlan
from executor_service.config import ExecutorConfig
from executor_service.cores import compute_threads
from executor_service.kernels.backend import KVShape
from executor_service.memory.kv_pool import KVPool
from executor_service.memory.sizing import PoolRequest, num_pool_blocks
from executor_service.models.checkpoint import Checkpoint, open_checkpoint
from executor_service.models.config import ModelConfig
from executor_service.models.llama import LlamaModel
from executor_service.models.source import default_name, locate
from executor_service.models.weights import Progress
from executor_service.runner.cpu_device import CpuDevice
from executor_service.runner.device import B, Device, Runner
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.step_limits import StepLimits
from executor_service.runner.weight_fit import check_weights_fit

log = logging.getLogger(__name__)

_WARM_UP_TOKENS = 64


class LoadedWeights(NamedTuple):
    dtype: str
    num_bytes: int


class LoadedKV(NamedTuple):
    dtype: str
    element_bytes: float
    pool: KVPool


def load_runner(config: ExecutorConfig, progress: Progress) -> Runner:
    """Loads and warms up. Raises ConfigError or ModelError saying what to change."""
    if config.device == "cpu":
        return load_on(CpuDevice(config), config, progress)
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "--device cuda needs the package triton: pip install 'octavo[executor,gpu]'"
            " (from a checkout: pip install -r requirements-triton.lock)"
        )
    from executor_service.runner.cuda_device import open_cuda

    return load_on(open_cuda(config), config, progress)


def load_on(device: Device[B], config: ExecutorConfig, progress: Progress) -> Runner:
    """`load_runner` on an opened device, which waits for nothing until `backend` is called: its
    kernels may be being built while a model is fetched."""
    checkpoint = open_checkpoint(locate(config.model, config.revision))
    return load_checkpoint(device, config, checkpoint, progress)


def load_checkpoint(
    device: Device[B], config: ExecutorConfig, checkpoint: Checkpoint, progress: Progress
) -> Runner:
    """Likewise, whatever `config.model` names."""
    torch.set_num_threads(compute_threads(config.threads))
    max_model_len = _max_model_len(config, device.max_positions(checkpoint.config))
    limits = StepLimits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
    )
    backend = device.backend(checkpoint.config, max_model_len)
    check_weights_fit(device, backend, checkpoint)
    with torch.inference_mode():
        model = LlamaModel(backend, checkpoint.config, checkpoint.weights, max_model_len, progress)
        request = _pool_request(device, config, model, limits, backend)
        element = kv_element_bytes(backend.kv_kind.value, checkpoint.config.head_dim)
        pool = KVPool(backend, _pool_shape(request, checkpoint.config, element, device.free_bytes))
    weights = LoadedWeights(backend.weights_dtype(), model.num_bytes)
    spec = _spec(
        config, checkpoint, limits, weights, LoadedKV(backend.kv_kind.value, element, pool)
    )
    _log_loaded(spec, request)
    progress(0, 1, "warm-up")
    runner = device.runner(spec, checkpoint.files, model, pool, backend)
    _warm_up(runner)
    progress(1, 1, "warm-up")
    return runner


def _log_loaded(spec: ExecutorSpec, request: PoolRequest) -> None:
    log.info(
        "model loaded",
        extra={
            "model": spec.model_name,
            "weights": spec.dtype,
            "weights_memory": size_text(spec.weights_bytes),
            "kv_memory": size_text(spec.kv_bytes),
            "kept_for_steps": size_text(request.step_bytes),
            "num_blocks": spec.num_blocks,
            "threads": torch.get_num_threads(),
        },
    )


def _max_model_len(config: ExecutorConfig, limit: int) -> int:
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ConfigError(
            f"--max-model-len {config.max_model_len} is beyond the model's limit of {limit} tokens"
        )
    return config.max_model_len or limit


def _pool_request(
    device: Device[B], config: ExecutorConfig, model: LlamaModel, limits: StepLimits, backend: B
) -> PoolRequest:
    pool_bytes = config.kv_cache_memory_bytes
    if pool_bytes is not None and config.num_blocks is not None:
        log.warning("--num-blocks %d wins over --kv-cache-memory-bytes", config.num_blocks)
    if pool_bytes is None and config.num_blocks is None:
        pool_bytes = device.pool_bytes(config, model, limits, backend)
    return PoolRequest(
        num_blocks=config.num_blocks,
        kv_cache_memory_bytes=pool_bytes,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        step_bytes=device.step_bytes(model, limits, backend),
    )


def _pool_shape(
    request: PoolRequest,
    model: ModelConfig,
    element_bytes: float,
    free_bytes: Callable[[], int],
) -> KVShape:
    per_block = block_bytes(
        block_size=request.block_size,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        element_bytes=element_bytes,
    )
    num_blocks = num_pool_blocks(request, per_block, free_bytes)
    return model.kv_shape(num_blocks=num_blocks, block_size=request.block_size)


def _spec(
    config: ExecutorConfig,
    checkpoint: Checkpoint,
    limits: StepLimits,
    weights: LoadedWeights,
    kv: LoadedKV,
) -> ExecutorSpec:
    model = checkpoint.config
    return ExecutorSpec(
        fingerprint=checkpoint.fingerprint,
        model_name=config.served_model_name or default_name(config.model),
        block_size=limits.block_size,
        num_blocks=kv.pool.shape.num_blocks,
        max_rows=limits.max_rows,
        max_chunks=limits.max_chunks,
        max_model_len=limits.max_model_len,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        vocab_size=model.vocab_size,
        kv_bytes_per_token=int(
            kv_bytes_per_token(
                num_layers=model.num_layers,
                num_kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
                element_bytes=kv.element_bytes,
            )
        ),
        dtype=weights.dtype,
        kv_cache_dtype=kv.dtype,
        device=config.device,
        weights_bytes=weights.num_bytes,
        kv_bytes=kv.pool.num_bytes,
    )


def _warm_up(runner: Runner) -> None:
    """One prompt and one decode through every kernel; first calls plan and allocate."""
    spec = runner.spec
    length = min(
        _WARM_UP_TOKENS,
        spec.max_model_len - 1,
        spec.max_num_batched_tokens,
        spec.num_blocks * spec.block_size - 1,
    )
    sequence = SequenceSpec(
        sequence_id=SequenceId(0),
        index=0,
        num_prompt_tokens=length,
        params=SamplingParams(temperature=1.0, top_p=0.9),
    )
    history = array(TOKEN_TYPECODE, [0] * (length + 1))
    table = array(TOKEN_TYPECODE, range(-(-(length + 1) // spec.block_size)))
    for start, count in ((0, length), (length, 1)):
        runner.execute(_warm_up_plan(sequence, history, table, start, count))
    runner.forget_samples()


def _warm_up_plan(
    sequence: SequenceSpec, history: array[int], table: array[int], start: int, count: int
) -> StepPlan:
    return StepPlan(
        step_id=0,
        sequences=[sequence],
        starts=array(TOKEN_TYPECODE, [start]),
        lengths=array(TOKEN_TYPECODE, [count]),
        token_buffers=[history],
        token_lengths=array(TOKEN_TYPECODE, [start + count]),
        table_buffers=[table],
        table_lengths=array(TOKEN_TYPECODE, [len(table)]),
        num_samples=array(TOKEN_TYPECODE, [1]),
        sampled=[sequence],
    )
