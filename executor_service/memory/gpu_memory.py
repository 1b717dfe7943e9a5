"""How much of a GPU's memory the KV pool may take."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from common.errors import ConfigError
from common.kv_size import GIB, MIB

_RESERVE_BYTES = 768 * MIB
"""For what is not counted: workspaces of cuBLAS, captured graphs, the allocator's rounding."""


class StepLimits(Protocol):
    """The flags that bound a step and the pool."""

    @property
    def gpu_memory_utilization(self) -> float: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...


class ModelSizes(Protocol):
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class Memory(NamedTuple):
    """Bytes."""

    free: int
    total: int


def read_memory(device: torch.device) -> Memory:
    """What nobody holds, torch's own cache given back first, and what there is."""
    torch.cuda.empty_cache()
    return Memory(*torch.cuda.mem_get_info(device))


def pool_bytes(limits: StepLimits, model: ModelSizes, dtype: torch.dtype, memory: Memory) -> int:
    """What is free, less what is to be left alone and what the largest step takes.

    `memory` as it is once weights are loaded. Raises ConfigError if that leaves nothing.
    """
    kept = round((1 - limits.gpu_memory_utilization) * memory.total)
    kept += activation_bytes(limits, model, dtype)
    if kept >= memory.free:
        raise ConfigError(
            f"{memory.free / GIB:.2f} GiB of the GPU are free after loading the weights, and "
            f"{kept / GIB:.2f} GiB are to be left by --gpu-memory-utilization and for steps of "
            "--max-num-batched-tokens: nothing is left for the KV pool"
        )
    return memory.free - kept


def activation_bytes(limits: StepLimits, model: ModelSizes, dtype: torch.dtype) -> int:
    """An upper estimate for the largest step: its widest layer, and the logits of every row twice
    (as computed, and as changed for sampling)."""
    attention = 3 * model.num_heads * model.head_dim
    per_token = 4 * model.hidden_size + 3 * model.intermediate_size + 2 * attention
    layers = limits.max_num_batched_tokens * per_token * dtype.itemsize
    logits = limits.max_num_seqs * model.vocab_size * 3 * torch.float32.itemsize
    return layers + logits + _RESERVE_BYTES
