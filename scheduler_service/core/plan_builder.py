"""Fills the columns of one plan, and remembers what its result will mean."""

from __future__ import annotations

from common.plan import BlockId, StepPlan
from scheduler_service.core.sequence import Sequence
from scheduler_service.core.state import StepInFlight


class PlanBuilder:
    """One step in the making. `plan` goes to the executor, `step` waits for its result."""

    __slots__ = ("plan", "step")

    def __init__(self, step_id: int) -> None:
        self.plan = StepPlan(step_id=step_id)
        self.step = StepInFlight(step_id)

    @property
    def is_empty(self) -> bool:
        return not self.plan.sequences

    def holds(self, sequence: Sequence) -> bool:
        """Whether the plan names the sequence or one of its blocks."""
        return sequence.last_step_id == self.plan.step_id

    def add_chunk(self, sequence: Sequence, length: int) -> None:
        """The next `length` tokens of the sequence; the table covers them already."""
        plan, start = self.plan, sequence.num_planned_tokens
        plan.sequences.append(sequence.spec)
        plan.starts.append(start)
        plan.lengths.append(length)
        plan.token_buffers.append(sequence.tokens)
        plan.token_lengths.append(len(sequence.tokens))
        plan.table_buffers.append(sequence.table.buffer)
        plan.table_lengths.append(len(sequence.table.buffer))
        plan.num_samples.append(0)
        sequence.num_planned_tokens = start + length
        self._name(sequence, start)

    def add_sample(self, sequence: Sequence) -> None:
        """The chunk just added samples a token for `sequence`."""
        self.plan.num_samples[-1] += 1
        self.plan.sampled.append(sequence.spec)
        self.step.sampled.append(sequence)
        sequence.num_pending += 1

    def add_forks(self, parent: Sequence, children: list[Sequence]) -> None:
        """The children exist from this plan on and get a sample each."""
        self.step.forked.append((parent, children))
        for child in children:
            self._name(child, child.num_planned_tokens)
            self.add_sample(child)

    def add_copy(self, source: BlockId, sequence: Sequence, destination: BlockId) -> None:
        """Copies `source` into the tail of `sequence` before the step runs."""
        self.plan.copy_sources.append(source)
        self.plan.copy_destinations.append(destination)
        self.step.copied.append(sequence)
        self.fence(sequence)

    def fence(self, sequence: Sequence) -> None:
        """What the sequence holds is not reused before this step has ended."""
        sequence.last_step_id = self.plan.step_id

    def _name(self, sequence: Sequence, start: int) -> None:
        sequence.last_step_id = self.plan.step_id
        sequence.num_in_flight += 1
        self.step.computed.append((sequence, sequence.life, start, sequence.num_planned_tokens))
