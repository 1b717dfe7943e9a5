"""A snapshot of the core for metrics, readiness and routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from scheduler_service.core.state import SchedulerState


class LiveKV(NamedTuple):
    """What the tables of running sequences hold. Cached blocks that no table names do not count;
    a block that several tables share counts for each."""

    num_tokens: int
    """Computed."""
    num_slots: int
    """Allocated."""

    @property
    def waste(self) -> float:
        """Share of the slots that hold no computed token; 0 without slots."""
        return 1.0 - self.num_tokens / self.num_slots if self.num_slots else 0.0


def live_kv(state: SchedulerState) -> LiveKV:
    """O(running sequences)."""
    num_tokens = num_blocks = 0
    for sequence in state.running.values():
        num_tokens += sequence.num_computed_tokens
        num_blocks += len(sequence.table.buffer)
    return LiveKV(num_tokens, num_blocks * state.limits.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Gauges at one instant, and counts since the start (those only grow)."""

    num_running: int
    """Sequences with KV."""
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_evictable_blocks: int
    num_referenced_blocks: int
    live_kv: LiveKV
    num_preemptions: int
    num_stale_results: int
    num_starved: int
    num_computed_tokens: int
    num_recomputed_tokens: int
    num_recompute_avoided_tokens: int
    num_prefix_queried_tokens: int
    num_prefix_hit_tokens: int
    num_twin_waits: int
    num_voided_steps: int
    num_steps: int


def snapshot(state: SchedulerState) -> Counters:
    """O(running sequences)."""
    kv, tallies = state.kv, state.tallies
    free, evictable = kv.pool.num_free, kv.tree.num_evictable
    return Counters(
        num_running=len(state.running),
        num_waiting=len(state.waiting),
        num_blocks=kv.pool.num_blocks,
        num_free_blocks=free,
        num_evictable_blocks=evictable,
        num_referenced_blocks=kv.pool.num_blocks - free - evictable,
        live_kv=live_kv(state),
        num_preemptions=tallies.num_preemptions,
        num_stale_results=tallies.num_stale_results,
        num_starved=tallies.num_starved,
        num_computed_tokens=tallies.num_computed_tokens,
        num_recomputed_tokens=tallies.num_recomputed_tokens,
        num_recompute_avoided_tokens=tallies.num_recompute_avoided_tokens,
        num_prefix_queried_tokens=tallies.num_prefix_queried_tokens,
        num_prefix_hit_tokens=tallies.num_prefix_hit_tokens,
        num_twin_waits=tallies.num_twin_waits,
        num_voided_steps=tallies.num_voided_steps,
        num_steps=state.next_step_id,
    )
