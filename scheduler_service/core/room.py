"""Finding a block for a sequence that needs one when none is free: who gives way, who waits."""

from __future__ import annotations

from scheduler_service.core.ending import end, preempt
from scheduler_service.core.plan_builder import PlanBuilder
from scheduler_service.core.request import FinishReason
from scheduler_service.core.sequence import Sequence
from scheduler_service.core.state import SchedulerState


class RoomMaker:
    """The preemptions of one planning. A victim is taken only if that brings a block, at once or
    when the steps in flight have ended; blocks on their way are not asked for twice."""

    __slots__ = ("_builder", "_num_preempted", "_num_unmet", "_state")

    def __init__(self, state: SchedulerState, builder: PlanBuilder) -> None:
        self._state = state
        self._builder = builder
        self._num_unmet = 0  # sequences that skip this step for want of a block
        self._num_preempted = 0

    @property
    def is_short(self) -> bool:
        """Whether a running sequence went without a block, or gave way to another."""
        return self._num_unmet > 0 or self._num_preempted > 0

    def make_room(self, needy: Sequence) -> bool:
        """True: a block can be taken now. False: `needy` skips this step."""
        kv = self._state.kv
        if kv.num_available > 0:
            return True
        while self._num_unmet + 1 > kv.num_fenced_yield:
            victim = self._victim(needy)
            if victim is None:
                break
            self.give_up(victim)
            if kv.num_available > 0:
                return True
        self._num_unmet += 1
        return False

    def give_up(self, sequence: Sequence) -> None:
        """`sequence` gives way in this step."""
        self._num_preempted += 1
        preempt(self._state, sequence)

    def _victim(self, needy: Sequence) -> Sequence | None:
        """Who gives way to `needy`: never itself, nor one whose blocks this very plan names."""
        state = self._state
        candidates = [
            sequence
            for sequence in state.running.values()
            if sequence is not needy and not self._builder.holds(sequence)
        ]
        while (victim := state.policy.victim(candidates, needy)) is not None:
            if state.kv.num_yielded(victim) > 0:
                return victim
            candidates.remove(victim)
        return None

    def unlock(self) -> bool:
        """Nothing runs and nothing could be planned: the last in order gives way, or, alone, lets
        go of duplicates, or ends. True if planning is worth another try."""
        state = self._state
        if self._num_unmet == 0 or state.in_flight or not state.running:
            return False
        last = max(state.running.values(), key=state.policy.order)
        if len(state.running) > 1:
            preempt(state, last)
            return True
        state.kv.shed_duplicates(last)
        if state.kv.num_available == 0:
            state.tallies.num_starved += 1
            end(state, last, FinishReason.LENGTH)
        return True
