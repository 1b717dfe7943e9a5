from __future__ import annotations

import pytest

from common.errors import ConfigError
from common.kv_size import GIB, MIB
from executor_service.memory.gpu_memory import Memory, StepNeeds, pool_bytes

NEEDS = StepNeeds(step=3 * GIB, graphs=GIB)


def test_the_pool_takes_what_is_free_but_the_share_left_alone_the_step_and_graphs() -> None:
    memory = Memory(free=64 * GIB, total=80 * GIB)
    assert pool_bytes(0.9, NEEDS, memory) == (64 - 8 - 3 - 1) * GIB - 256 * MIB
    assert pool_bytes(1.0, NEEDS, memory) == (64 - 3 - 1) * GIB - 256 * MIB
    larger = NEEDS._replace(step=5 * GIB)
    assert pool_bytes(1.0, larger, memory) == (64 - 5 - 1) * GIB - 256 * MIB


def test_nothing_left_names_the_flags_and_what_was_measured() -> None:
    with pytest.raises(
        ConfigError, match=r"--gpu-memory-utilization.*--max-num-batched-tokens.*3\.00 GiB"
    ):
        pool_bytes(0.9, NEEDS, Memory(free=12 * GIB, total=80 * GIB))
