"""How many KV blocks to allocate, within what the machine and its cgroup really have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError
from common.kv_size import GIB, num_blocks_that_fit, size_text

_DEFAULT_SHARE = 0.5
_DEFAULT_LIMIT_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """What the flags ask for, and what the pool must leave."""

    num_blocks: int | None
    kv_cache_memory_bytes: int | None
    max_num_seqs: int
    max_model_len: int
    block_size: int
    step_bytes: int
    """Of activations, logits and workspaces of the largest step."""


def num_pool_blocks(
    request: PoolRequest, bytes_per_block: int, available: Callable[[], int]
) -> int:
    """Blocks to allocate.

    --num-blocks, or what --kv-cache-memory-bytes holds; else enough for max_num_seqs sequences of
    max_model_len, at most 4 GiB and half of the free memory that steps leave. Raises ConfigError
    naming the flag if the pool would not fit.
    """
    free = available() - request.step_bytes
    if request.num_blocks is not None:
        fitting = num_blocks_that_fit(free, bytes_per_block)
        problem = f"--num-blocks: {fitting} blocks would fit, not {request.num_blocks}"
        _check_fits(request, request.num_blocks * bytes_per_block, free, problem)
        return request.num_blocks
    if request.kv_cache_memory_bytes is not None:
        _check_fits(request, request.kv_cache_memory_bytes, free, "--kv-cache-memory-bytes")
        blocks = num_blocks_that_fit(request.kv_cache_memory_bytes, bytes_per_block)
        return _at_least_one(blocks, bytes_per_block, "--kv-cache-memory-bytes is too small")
    per_sequence = -(-request.max_model_len // request.block_size)
    budget = min(_DEFAULT_LIMIT_BYTES, int(free * _DEFAULT_SHARE))
    fitting = num_blocks_that_fit(max(0, budget), bytes_per_block)
    blocks = min(request.max_num_seqs * per_sequence, fitting)
    problem = f"free memory is too small{_kept(request)}"
    return _at_least_one(blocks, bytes_per_block, problem)


def _at_least_one(blocks: int, bytes_per_block: int, problem: str) -> int:
    if blocks < 1:
        raise ConfigError(f"{problem}: one KV block takes {size_text(bytes_per_block)}")
    return blocks


def _check_fits(request: PoolRequest, num_bytes: int, free: int, problem: str) -> None:
    if num_bytes > free:
        raise ConfigError(
            f"{problem}: the KV pool would take {size_text(num_bytes)}, but"
            f" {size_text(max(0, free))} are free for it{_kept(request)}"
        )


def _kept(request: PoolRequest) -> str:
    """Nothing where steps keep nothing."""
    if not request.step_bytes:
        return ""
    return (
        f": {size_text(request.step_bytes)} are kept for the steps themselves, which"
        " --max-num-batched-tokens and --max-num-seqs bound"
    )


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process may still take: the machine's, or less if its cgroup allows less."""
    machine, limit = _machine_available(proc), _cgroup_available(cgroup)
    return machine if limit is None else min(machine, limit)


def _machine_available(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise ConfigError(f"{proc}/meminfo does not say how much memory is available")


def _cgroup_available(cgroup: Path) -> int | None:
    """Limit less use, without what the kernel would drop; None without a limit."""
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        if not (cgroup / limit_name).is_file():
            continue
        limit = (cgroup / limit_name).read_text().strip()
        if limit == "max":
            return None
        used = int((cgroup / used_name).read_text())
        return max(0, int(limit) - used + _droppable(cgroup / limit_name))
    return None


def _droppable(limit_file: Path) -> int:
    """File cache of the cgroup that is not in use; 0 where it is not told."""
    statistics = limit_file.parent / "memory.stat"
    if not statistics.is_file():
        return 0
    fields = dict(line.split() for line in statistics.read_text().splitlines())
    return int(fields.get("inactive_file", 0))
