"""Fills the columns of one plan, and remembers what its result will mean."""

from __future__ import annotations

from array import array

from common.plan import TOKEN_TYPECODE, BlockId, StepPlan
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

    def add_decodes(self, sequences: list[Sequence]) -> None:
        """One token each; their tables cover it. Must come before any chunk.

        Column by column, since in steady decode this is nearly all the work of a step.
        """
        plan, step_id = self.plan, self.plan.step_id
        plan.num_decodes = len(sequences)
        plan.sequences = [sequence.spec for sequence in sequences]
        plan.starts = array(TOKEN_TYPECODE, [s.num_planned_tokens for s in sequences])
        plan.lengths = array(TOKEN_TYPECODE, [1]) * len(sequences)
        plan.token_buffers = [sequence.tokens for sequence in sequences]
        plan.token_lengths = array(TOKEN_TYPECODE, map(len, plan.token_buffers))
        plan.table_buffers = [sequence.table.buffer for sequence in sequences]
        plan.table_lengths = array(TOKEN_TYPECODE, map(len, plan.table_buffers))
        plan.num_samples = plan.lengths[:]
        plan.sampled = plan.sequences[:]
        self.step.sampled = sequences
        computed = self.step.computed
        for sequence, start in zip(sequences, plan.starts, strict=True):
            end = sequence.num_planned_tokens = start + 1
            sequence.num_pending += 1
            sequence.num_in_flight += 1
            sequence.last_step_id = step_id
            computed.append((sequence, sequence.life, start, end))

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
