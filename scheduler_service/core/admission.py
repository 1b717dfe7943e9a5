"""Which waiting sequences may start now.

A sequence starts when there are blocks for all its tokens, beyond those that running prompts still
need; checking the first chunk alone would admit more than fits. One that does not fit is passed by
others at most MAX_PASSES times; then the queue waits for it.
"""

from __future__ import annotations

from scheduler_service.core.events import SequenceAdmitted
from scheduler_service.core.radix_tree import Match
from scheduler_service.core.sequence import Sequence, SequenceStatus
from scheduler_service.core.state import SchedulerState
from scheduler_service.core.twins import MAX_TWIN_WAITS

MAX_PASSES = 8
"""Later requests that may start before one that does not fit."""
MAX_LOOKUPS = 64
"""Sequences that one step looks up in vain; bounds the cost of a long queue."""


class Admission:
    """The admissions of one planning."""

    __slots__ = ("_num_lookups", "_num_reserved", "_passed", "_state", "is_closed")

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._passed: list[Sequence] = []
        self._num_lookups = 0
        self._num_reserved = 0
        self.is_closed = len(state.running) >= state.limits.max_num_running
        """No other sequence can be admitted in this step."""
        if not self.is_closed:
            self._num_reserved = sum(map(self._num_blocks_missing, state.running.values()))

    def _num_blocks_missing(self, sequence: Sequence) -> int:
        return max(0, self._state.kv.num_blocks_for(len(sequence)) - len(sequence.table))

    def try_admit(self, sequence: Sequence) -> bool:
        """Starts the sequence if it may start now."""
        if sequence.num_in_flight or self._waits_for_known_twin(sequence):
            return False
        match = self._state.kv.lookup(sequence)
        if not self._waits_for_twin(sequence, match):
            if self._fits(sequence, match):
                self._start(sequence, match)
                return True
            self._passed.append(sequence)
            self.is_closed = sequence.num_times_passed >= MAX_PASSES
        self._num_lookups += 1
        self.is_closed = self.is_closed or self._num_lookups >= MAX_LOOKUPS
        return False

    def reserve(self, sequence: Sequence) -> None:
        """Keeps blocks for what is left of a sequence that has just started, and counts the places
        that it and its forks have taken."""
        self._num_reserved += self._num_blocks_missing(sequence)
        if len(self._state.running) >= self._state.limits.max_num_running:
            self.is_closed = True

    def _waits_for_known_twin(self, sequence: Sequence) -> bool:
        """The prefix it was last passed over for is still being computed."""
        return (
            sequence.awaited is not None
            and self._state.prefixes.is_in_progress(sequence.awaited)
            and self._pass_over(sequence)
        )

    def _waits_for_twin(self, sequence: Sequence, match: Match) -> bool:
        state = self._state
        sequence.awaited = None
        if not state.kv.reads_cache(sequence):
            return False
        if match.num_blocks < state.kv.max_cached_blocks(sequence):
            sequence.awaited = state.prefixes.twin_key(sequence, match)
        return sequence.awaited is not None and self._pass_over(sequence)

    def _pass_over(self, sequence: Sequence) -> bool:
        """False once it has waited for twins long enough."""
        if sequence.num_twin_waits >= MAX_TWIN_WAITS:
            return False
        sequence.num_twin_waits += 1
        self._state.tallies.num_twin_waits += 1
        return True

    def _fits(self, sequence: Sequence, match: Match) -> bool:
        kv = self._state.kv
        needed = kv.num_blocks_for(len(sequence)) - match.num_blocks
        return needed <= kv.num_available_after(match) - self._num_reserved

    def _start(self, sequence: Sequence, match: Match) -> None:
        state = self._state
        for passed in self._passed:
            passed.num_times_passed += 1
            if passed.num_times_passed >= MAX_PASSES:
                self.is_closed = True
        sequence.num_times_passed = 0
        sequence.awaited = None
        state.waiting.remove(sequence)
        state.kv.start(sequence, match)
        sequence.move_to(SequenceStatus.RUNNING)
        state.running[sequence.sequence_id] = sequence
        state.prefixes.update(sequence)
        self._tell(sequence)

    def _tell(self, sequence: Sequence) -> None:
        """Hits count at the first admission; later ones only spare recompute."""
        tallies, num_cached = self._state.tallies, sequence.num_computed_tokens
        if sequence.was_admitted:
            tallies.num_recompute_avoided_tokens += num_cached
            return
        sequence.was_admitted = True
        tallies.num_prefix_queried_tokens += len(sequence)
        tallies.num_prefix_hit_tokens += num_cached
        self._state.events.admitted.append(
            SequenceAdmitted(sequence.sequence_id, sequence.key, num_cached)
        )
