from __future__ import annotations

import dataclasses

import pytest
import torch

from common.errors import ConfigError
from common.kv_size import GIB
from executor_service.memory.gpu_memory import Memory, activation_bytes, pool_bytes


@dataclasses.dataclass(frozen=True)
class Limits:
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Llama 3 8B."""

    vocab_size: int = 128256
    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_heads: int = 32
    head_dim: int = 128


BF16 = torch.bfloat16


def test_the_pool_takes_what_is_free_but_the_share_left_alone_and_the_step() -> None:
    step = activation_bytes(Limits(), Sizes(), BF16)
    found = pool_bytes(Limits(), Sizes(), BF16, Memory(free=64 * GIB, total=80 * GIB))
    assert found == 64 * GIB - 8 * GIB - step
    everything = pool_bytes(
        Limits(gpu_memory_utilization=1.0), Sizes(), BF16, Memory(free=64 * GIB, total=80 * GIB)
    )
    assert everything == 64 * GIB - step


def test_larger_steps_leave_less() -> None:
    step = activation_bytes(Limits(), Sizes(), BF16)
    assert activation_bytes(Limits(max_num_batched_tokens=8192), Sizes(), BF16) > step
    assert activation_bytes(Limits(max_num_seqs=512), Sizes(), BF16) > step
    assert activation_bytes(Limits(), Sizes(), torch.float32) > step


def test_a_step_covers_its_widest_layer_and_the_logits() -> None:
    widest = 2048 * (2 * 14336 + 14336) * 2
    logits = 2 * 256 * 128256 * 4
    assert activation_bytes(Limits(), Sizes(), BF16) > widest + logits


def test_nothing_left_names_the_flags() -> None:
    with pytest.raises(ConfigError, match=r"--gpu-memory-utilization.*--max-num-batched-tokens"):
        pool_bytes(Limits(), Sizes(), BF16, Memory(free=8 * GIB, total=80 * GIB))
