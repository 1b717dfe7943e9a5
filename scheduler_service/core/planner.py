"""One step's plan. Each sequence has tokens and a count that tries to catch up; nothing else is
known here of prefill, decode, cache hits or recompute.
"""

from __future__ import annotations

from common.plan import StepPlan
from scheduler_service.core.admission import Admission
from scheduler_service.core.forking import fork
from scheduler_service.core.plan_builder import PlanBuilder
from scheduler_service.core.room import RoomMaker
from scheduler_service.core.sequence import Sequence, SequenceStatus
from scheduler_service.core.state import SchedulerState
from scheduler_service.core.step_budget import DecodeLoad, StepBudget

RUNNING = SequenceStatus.RUNNING


class Planner:
    """Plans step after step over one state."""

    __slots__ = (
        "_block_size",
        "_budget",
        "_builder",
        "_limits",
        "_num_forks",
        "_num_released",
        "_room",
        "_state",
    )

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._limits = state.limits
        self._block_size = state.limits.block_size
        self._begin()

    def plan(self) -> StepPlan | None:
        """The next step, now in flight; None if there is nothing to run.

        Decodes first, then unfinished prompts in admission order, then new sequences, while token
        budget, places and blocks last.
        """
        while True:
            self._begin()
            behind = self._plan_decodes()
            self._bound_prompts()
            self._plan_prompts(behind)
            self._admit_waiting()
            if not self._builder.is_empty:
                return self._commit()
            if not self._room.unlock():
                return None

    def _begin(self) -> None:
        self._builder = PlanBuilder(self._state.next_step_id)
        self._room = RoomMaker(self._state, self._builder)
        self._budget = StepBudget(self._limits)
        self._num_forks = 0
        self._num_released = len(self._state.released)

    def _commit(self) -> StepPlan:
        """The plan is sent from here on; nothing changes it any more."""
        state, builder = self._state, self._builder
        # Sequences released while planning may be sampled by this very plan: the next one says so.
        builder.plan.released = state.released[: self._num_released]
        del state.released[: self._num_released]
        state.next_step_id += 1
        state.in_flight.append(builder.step)
        return builder.plan

    def _plan_decodes(self) -> list[Sequence]:
        """Running sequences that want more than one token are left, in admission order."""
        step_id, size, tails = self._builder.plan.step_id, self._block_size, self._state.tails
        decodes: list[Sequence] = []
        behind: list[Sequence] = []
        for sequence in list(self._state.running.values()):
            length = sequence.num_tokens_to_plan
            if length != 1 or sequence.forks_left:
                if length:
                    behind.append(sequence)
                continue
            if len(decodes) == self._budget.tokens:
                break
            has_slot = (
                sequence.num_planned_tokens < len(sequence.table.buffer) * size
                and sequence not in tails
            )
            # Any but the first may have given way to one before it.
            if sequence.status is RUNNING and (has_slot or self._get_slot(sequence)):
                sequence.last_step_id = step_id
                decodes.append(sequence)
        self._builder.add_decodes(decodes)
        self._budget.take_decodes(len(decodes))
        return behind

    def _bound_prompts(self) -> None:
        """Keeps the step short for those who decode in it."""
        state, plan = self._state, self._builder.plan
        if state.costs is None or plan.num_decodes == 0:
            return
        places = self._limits.max_num_running - len(state.running)
        load = DecodeLoad(
            num_decodes=plan.num_decodes,
            num_attended=sum(plan.starts) + plan.num_decodes,
            num_sequences=len(state.running) + max(0, min(places, len(state.waiting))),
        )
        self._budget.bound_prompts(state.costs, self._limits.max_decode_stall, load)

    def _get_slot(self, sequence: Sequence) -> bool:
        """Whether the next token has a slot of its own; gets one where a block is to be had."""
        if sequence in self._state.tails and not self._own_tail(sequence):
            return False
        if sequence.num_planned_tokens < len(sequence.table.buffer) * self._block_size:
            return True
        return self._room.make_room(sequence) and self._state.kv.grow(sequence, 1) == 1

    def _plan_prompts(self, behind: list[Sequence]) -> None:
        for sequence in behind:
            if self._budget.is_spent:
                break
            if sequence.status is RUNNING:
                self._plan_chunk(sequence)

    def _admit_waiting(self) -> None:
        """New sequences, unless those that run already were short of blocks."""
        if self._room.is_short or self._budget.is_spent or not len(self._state.waiting):
            return
        admission = Admission(self._state)
        for sequence in list(self._state.waiting):
            if self._budget.is_spent or admission.is_closed:
                break
            if admission.try_admit(sequence):
                self._plan_chunk(sequence)
                admission.reserve(sequence)

    def _plan_chunk(self, sequence: Sequence) -> None:
        """As much of the sequence as budget and blocks allow; samples if that is its end."""
        start = sequence.num_planned_tokens
        allowed = self._budget.prompt_tokens(start, sequence.num_tokens_to_plan)
        length = self._cover(sequence, allowed)
        if length == sequence.num_tokens_to_plan and not self._may_fork(sequence):
            length -= 1
        if length <= 0:
            return
        is_last = length == sequence.num_tokens_to_plan
        self._builder.add_chunk(sequence, length)
        self._budget.take_prompt(start, length)
        if is_last:
            self._builder.add_sample(sequence)
            if sequence.forks_left:
                self._num_forks += sequence.forks_left
                self._builder.add_forks(sequence, fork(self._state, sequence))

    def _may_fork(self, sequence: Sequence) -> bool:
        """Forks of one step are bounded, since each takes a row of the stream at once."""
        return self._num_forks + sequence.forks_left <= self._limits.max_num_seqs

    def _cover(self, sequence: Sequence, length: int) -> int:
        """Gets blocks for the next `length` tokens; returns how many the table covers, maybe 0."""
        kv, start = self._state.kv, sequence.num_planned_tokens
        missing = kv.num_blocks_for(start + length) - len(sequence.table)
        if missing > 0 and kv.grow(sequence, missing) < missing:
            room = len(sequence.table) * self._block_size - start
            if room == 0 and self._room.make_room(sequence):
                room = kv.grow(sequence, 1) * self._block_size
            return min(length, room)
        return length

    def _own_tail(self, sequence: Sequence) -> bool:
        """Copy-on-write before the first write into a block that forks share (I2).

        Every owner but the first gets a copy in this plan; another than `sequence` for whom there
        is no block gives way. False if there is none for `sequence`, which skips this step.
        """
        state = self._state
        tail = state.tails.get(sequence)
        keeper, *others = tail.owners
        if sequence is not keeper:
            if not self._room.make_room(sequence):
                return False
            others.remove(sequence)
            others.insert(0, sequence)
        self._builder.fence(keeper)
        for owner in others:
            if owner.status is not RUNNING:
                continue  # it gave way in make_room
            block_id = state.kv.take_block()
            if block_id is None:
                self._room.give_up(owner)
                continue
            state.tails.leave(owner)
            state.kv.pool.release([state.kv.replace_tail(owner, block_id)])
            self._builder.add_copy(tail.block_id, owner, block_id)
        return True
