"""How many tokens and requests fit beside a model's weights, and how fast the device decodes."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from common.errors import ConfigError
from common.kv_size import (
    Device,
    block_bytes,
    blocks_of,
    compute_seconds,
    kv_bytes_per_token,
    kv_element_bytes,
    larger_size_text,
    num_blocks_that_fit,
    num_sequences_that_fit,
    read_seconds,
    size_text,
    step_seconds,
)
from executor_service.config import ExecutorConfig
from executor_service.memory.sizing import PoolRequest, num_pool_blocks
from octavo.sizing.card import CPU, card_of
from octavo.sizing.config import SizeConfig
from octavo.sizing.model_shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEstimate:
    device: Device | None
    """None: nothing is known of its speed, and the times are 0."""
    memory_bytes: float
    kv_dtype: str
    weight_bytes: float
    kv_bytes_per_token: float
    room_bytes: float
    """What the device may be used for beside the weights."""
    kv_bytes: float
    """Of those, what the KV cache takes."""
    num_blocks: int
    num_tokens: int
    num_requests: int
    """Of the asked length, at once."""
    compute_s: float = 0.0
    """One token alone: its arithmetic."""
    read_s: float = 0.0
    """One token alone: reading the weights."""
    full_step_s: float = 0.0
    """One token for each of `num_requests`, all at their full length; 0 if none fits."""


def estimate(shape: ModelShape, config: SizeConfig) -> SizeEstimate:
    """ConfigError if the weights leave no room."""
    card = card_of(config.device)
    memory_bytes = config.memory_bytes or card.memory_bytes
    weight_bytes = shape.weight_bytes
    room_bytes = _room(config, memory_bytes, weight_bytes)
    heads = {
        "num_layers": shape.num_layers,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
    }
    element_bytes = kv_element_bytes(shape.kv_dtype, shape.head_dim)
    per_token = kv_bytes_per_token(element_bytes=element_bytes, **heads)
    per_block = block_bytes(block_size=config.block_size, element_bytes=element_bytes, **heads)
    num_blocks = _num_blocks(shape, config, room_bytes, per_block)
    num_requests = num_sequences_that_fit(num_blocks, blocks_of(config.length, config.block_size))
    device = _device(config, card.device)
    times = (
        _times(shape, device, num_requests, num_requests * config.length * per_token)
        if device
        else {}
    )
    return SizeEstimate(
        device=device,
        memory_bytes=memory_bytes,
        kv_dtype=shape.kv_dtype,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=per_token,
        room_bytes=room_bytes,
        kv_bytes=num_blocks * per_block,
        num_blocks=num_blocks,
        num_tokens=num_blocks * config.block_size,
        num_requests=num_requests,
        **times,
    )


def _room(config: SizeConfig, memory_bytes: float, weight_bytes: float) -> float:
    """Only on a GPU is some of the memory left alone."""
    share, usable, flags = 1.0, size_text(memory_bytes), "--memory"
    if config.device != CPU:
        share, flags = config.gpu_memory_utilization, "--memory, --gpu-memory-utilization, --dtype"
        usable = f"{share:g} x {usable}"
    room_bytes = memory_bytes * share - weight_bytes
    if room_bytes <= 0:
        taken = larger_size_text(weight_bytes, memory_bytes * share)
        raise ConfigError(
            f"the weights take {taken}, which leaves no KV cache in {usable} ({flags})"
        )
    return room_bytes


def _num_blocks(shape: ModelShape, config: SizeConfig, room_bytes: float, per_block: int) -> int:
    """On a CPU as `up` without flags would have it: at most half of what is free, and so on."""
    if config.device != CPU:
        return num_blocks_that_fit(room_bytes, per_block)
    request = PoolRequest(
        num_blocks=None,
        kv_cache_memory_bytes=None,
        max_num_seqs=ExecutorConfig().max_num_seqs,
        max_model_len=shape.max_model_len or sys.maxsize,
        block_size=config.block_size,
        step_bytes=0,  # known once weights are packed: some MiB beside the logits of a step
    )
    return num_pool_blocks(request, per_block, lambda: int(room_bytes))


def _device(config: SizeConfig, known: Device | None) -> Device | None:
    """With what the flags say; None where a figure is missing."""
    flops = config.flops or (known.flops if known else None)
    bandwidth = config.bandwidth or (known.bandwidth if known else None)
    return Device(flops=flops, bandwidth=bandwidth) if flops and bandwidth else None


def _times(
    shape: ModelShape, device: Device, num_requests: int, kv_bytes_read: float
) -> dict[str, float]:
    full_step_s = step_seconds(
        num_parameters=shape.num_parameters,
        weight_bytes=shape.weight_bytes,
        num_tokens=num_requests,
        kv_bytes_read=kv_bytes_read,
        device=device,
    )
    return {
        "compute_s": compute_seconds(
            num_parameters=shape.num_parameters, num_tokens=1, device=device
        ),
        "read_s": read_seconds(num_bytes=shape.weight_bytes, device=device),
        "full_step_s": full_step_s if num_requests else 0.0,
    }
