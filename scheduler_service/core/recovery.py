"""When steps are lost: the stream ended, or the executor is another one."""

from __future__ import annotations

from scheduler_service.core.ending import forget, park, preempt
from scheduler_service.core.forking import unfork
from scheduler_service.core.forks import SharedTails
from scheduler_service.core.kv_cache import KVCacheManager
from scheduler_service.core.sequence import SequenceStatus
from scheduler_service.core.state import SchedulerState
from scheduler_service.core.twins import PrefixesInProgress


def void_steps(state: SchedulerState) -> None:
    """Nothing in flight will ever be answered, and the executor has stopped it: back to what is
    confirmed. Forks of a voided plan never happened; tails it was to copy hold nothing."""
    steps = list(state.in_flight)
    state.in_flight.clear()
    if not steps:
        return
    state.tallies.num_voided_steps += len(steps)
    state.last_ended_step = steps[-1].step_id
    for step in reversed(steps):
        for sequence in step.copied:
            if sequence.status is SequenceStatus.RUNNING:
                preempt(state, sequence)
        for parent, children in step.forked:
            for child in children:
                if child.status is not SequenceStatus.FINISHED:
                    forget(state, child)
            unfork(parent, children)
    for sequence in state.sequences.values():
        sequence.num_pending = 0
        sequence.num_in_flight = 0
        sequence.num_planned_tokens = sequence.num_computed_tokens
    state.kv.end_step(state.last_ended_step)


def reset(state: SchedulerState) -> None:
    """Another incarnation: its pool is empty. Every sequence waits again, with its tokens."""
    void_steps(state)
    for sequence in list(state.running.values()):
        park(state, sequence)
    state.kv = KVCacheManager(state.limits)
    state.prefixes = PrefixesInProgress(state.limits.block_size)
    state.tails = SharedTails()
