from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.kv_size import GIB, MIB
from executor_service.memory.sizing import PoolRequest, available_memory, num_pool_blocks

PER_BLOCK = MIB


def request(**changes: Any) -> PoolRequest:
    fields: dict[str, Any] = {
        "num_blocks": None,
        "kv_cache_memory_bytes": None,
        "max_num_seqs": 4,
        "max_model_len": 100,
        "block_size": 16,
        "step_bytes": 0,
    }
    return PoolRequest(**(fields | changes))


def blocks(free: int, **changes: Any) -> int:
    return num_pool_blocks(request(**changes), PER_BLOCK, lambda: free)


def test_by_default_the_pool_holds_every_sequence_at_full_length() -> None:
    assert blocks(64 * GIB) == 4 * 7


def test_by_default_the_pool_takes_half_of_free_memory_and_4_gib_at_most() -> None:
    assert blocks(64 * GIB, max_num_seqs=10_000) == 4096
    assert blocks(2 * GIB, max_num_seqs=10_000) == 1024
    assert blocks(2 * GIB, max_num_seqs=10_000, step_bytes=GIB) == 512


def test_flags_decide_exactly() -> None:
    assert blocks(GIB, num_blocks=700) == 700
    assert blocks(GIB, kv_cache_memory_bytes=100 * MIB + 5) == 100
    assert blocks(GIB, num_blocks=1, kv_cache_memory_bytes=100 * MIB) == 1


@pytest.mark.parametrize(
    ("changes", "flag"),
    [({"num_blocks": 900}, "--num-blocks"), ({"kv_cache_memory_bytes": GIB}, "--kv-cache-memory")],
)
def test_a_pool_beyond_what_steps_leave_is_refused_naming_the_flags(
    changes: dict[str, int], flag: str
) -> None:
    assert blocks(GIB, **changes) > 0
    with pytest.raises(ConfigError, match=f"{flag}.*256.0 MiB are kept.*--max-num-batched-tokens"):
        blocks(GIB, **changes, step_bytes=256 * MIB)


def test_a_number_of_blocks_that_does_not_fit_is_told_which_would() -> None:
    for step_bytes in (256 * MIB, 300 * MIB - 1):
        with pytest.raises(ConfigError, match="--num-blocks: [0-9]+ blocks would fit") as caught:
            blocks(GIB, num_blocks=10_000, step_bytes=step_bytes)
        fitting = int(str(caught.value).split()[1])
        assert blocks(GIB, num_blocks=fitting, step_bytes=step_bytes) == fitting
        with pytest.raises(ConfigError, match="--num-blocks"):
            blocks(GIB, num_blocks=fitting + 1, step_bytes=step_bytes)
    with pytest.raises(ConfigError, match="--num-blocks: 0 blocks would fit"):
        blocks(GIB, num_blocks=1, step_bytes=2 * GIB)


def test_memory_too_small_for_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="one KV block"):
        blocks(GIB, kv_cache_memory_bytes=MIB - 1)
    with pytest.raises(ConfigError, match="^free memory is too small: one KV block"):
        blocks(MIB)
    with pytest.raises(ConfigError, match="one KV block"):
        blocks(GIB, step_bytes=2 * GIB)


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2097152 kB\n")
    return proc, cgroup


def test_without_a_limit_the_machines_memory_counts(machine: tuple[Path, Path]) -> None:
    proc, cgroup = machine
    assert available_memory(proc, cgroup) == 2 * GIB
    (cgroup / "memory.max").write_text("max\n")
    assert available_memory(proc, cgroup) == 2 * GIB


def test_a_cgroup_limit_counts_less_what_is_used(machine: tuple[Path, Path]) -> None:
    proc, cgroup = machine
    (cgroup / "memory.max").write_text(f"{GIB}\n")
    (cgroup / "memory.current").write_text(f"{600 * MIB}\n")
    assert available_memory(proc, cgroup) == 424 * MIB
    (cgroup / "memory.stat").write_text(f"anon 1\ninactive_file {100 * MIB}\n")
    assert available_memory(proc, cgroup) == 524 * MIB


def test_the_first_cgroup_version_is_read_too(machine: tuple[Path, Path]) -> None:
    proc, cgroup = machine
    (cgroup / "memory").mkdir()
    (cgroup / "memory/memory.limit_in_bytes").write_text(f"{GIB}\n")
    (cgroup / "memory/memory.usage_in_bytes").write_text(f"{GIB}\n")
    assert available_memory(proc, cgroup) == 0


def test_this_machine_has_memory() -> None:
    assert available_memory() > 64 * MIB
