"""Looks for everything in a plan that could corrupt the pool or crash a kernel, before either can.

A finding costs its own sequences the step, with INVALID_PLAN; all others run. The scheduler keeps
to these rules by construction, so a finding is a fault of software, not of a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from common.plan import ErrorCode, SequenceError, SequenceId, StepPlan
from executor_service.runner.chunk_columns import ChunkColumns, read_chunks
from executor_service.runner.findings import Findings
from executor_service.runner.sample_check import SampleChecker, sample_ranges
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.whole_plan import (
    all_below,
    are_distinct,
    fits_executor,
    only_writers_read,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSamples:
    """Outcome of the step before on this stream, by sequence."""

    tokens: Mapping[SequenceId, int] = field(default_factory=dict)
    failed: Mapping[SequenceId, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlan:
    chunks: list[int]
    """Plan indexes of the chunks that can run."""
    columns: ChunkColumns
    """Of these chunks."""
    copies: list[int]
    """Indexes of the block copies that can run."""
    errors: dict[SequenceId, SequenceError]


class PlanChecker:
    """The rules, against one executor's limits."""

    def __init__(self, spec: ExecutorSpec) -> None:
        self._spec = spec
        self._samples = SampleChecker(spec.vocab_size)
        self._is_written = np.zeros(spec.num_blocks, np.bool_)
        """Of each block, while a plan is checked."""

    def check(self, plan: StepPlan, last: LastSamples) -> CheckedPlan:
        size = self._spec.block_size
        if not _columns_fit(plan):
            return _refused_whole(plan, "the plan's columns do not fit together", size)
        found = Findings()
        chunks = list(range(plan.num_chunks))
        columns = read_chunks(plan, chunks, size)
        if not self._are_sound(plan, columns, last):
            self._check_chunks(plan, last, found)
        copies = self._check_copies(plan, found)
        self._samples.check(plan, found)
        if found.stopped:
            chunks = [i for i in chunks if plan.sequences[i].sequence_id not in found.stopped]
            columns = read_chunks(plan, chunks, size)
            _fail_samples(plan, chunks, found)
        return CheckedPlan(chunks=chunks, columns=columns, copies=copies, errors=found.errors)

    def _are_sound(self, plan: StepPlan, columns: ChunkColumns, last: LastSamples) -> bool:
        """Whether `_check_chunks` would find nothing. Most plans are seen to be so at once; a block
        that stands twice in one table is worth a closer look."""
        return (
            fits_executor(plan, columns, self._spec)
            and are_distinct([spec.sequence_id for spec in plan.sequences])
            and not any(self._input_problem(plan, i, last) for i in range(plan.num_chunks))
            and only_writers_read(columns, self._spec.block_size, self._is_written)
        )

    def _check_chunks(self, plan: StepPlan, last: LastSamples, found: Findings) -> None:
        num_tokens = 0
        writers: dict[int, SequenceId] = {}
        repeated = {
            key for key, n in Counter(s.sequence_id for s in plan.sequences).items() if n > 1
        }
        for i, spec in enumerate(plan.sequences):
            problem = self._chunk_problem(plan, i)
            if spec.sequence_id in repeated:
                problem = "the sequence has two chunks in one step"
            if problem is None:
                num_tokens += plan.lengths[i]
            if problem is None and num_tokens > self._spec.max_num_batched_tokens:
                problem = f"the step exceeds {self._spec.max_num_batched_tokens} tokens"
            if problem is None and i >= self._spec.max_chunks:
                problem = f"the step exceeds {self._spec.max_chunks} chunks"
            if problem is not None:
                found.stop(spec.sequence_id, problem)
                continue
            missing = self._input_problem(plan, i, last)
            if missing is not None:
                found.stop(spec.sequence_id, *missing)
            self._check_writes(plan, i, writers, found)
        self._check_reads(plan, writers, found)

    def _chunk_problem(self, plan: StepPlan, i: int) -> str | None:
        start, length = plan.starts[i], plan.lengths[i]
        end = start + length
        if start < 0 or length < 1 or end > self._spec.max_model_len:
            return f"positions [{start}, {end}) are not within {self._spec.max_model_len}"
        if plan.token_lengths[i] > len(plan.token_buffers[i]):
            return "the token history is shorter than its length"
        needed = -(-end // self._spec.block_size)
        if not needed <= plan.table_lengths[i] <= len(plan.table_buffers[i]):
            return f"{plan.table_lengths[i]} blocks do not cover {end} tokens"
        if not all_below(plan.table_buffers[i][:needed], self._spec.num_blocks):
            return f"a block id is not below {self._spec.num_blocks}"
        known = min(plan.token_lengths[i], end)
        if not all_below(plan.token_buffers[i][start:known], self._spec.vocab_size):
            return f"a token id is not below {self._spec.vocab_size}"
        return None

    @staticmethod
    def _input_problem(plan: StepPlan, i: int, last: LastSamples) -> tuple[str, ErrorCode] | None:
        """Every position needs a known token, but for the one sampled in the step before."""
        start, length, known = plan.starts[i], plan.lengths[i], plan.token_lengths[i]
        if known >= start + length:
            return None
        sequence_id = plan.sequences[i].sequence_id
        if length != 1 or known != start:
            message = f"{known} tokens do not cover [{start}, {start + length})"
            return message, ErrorCode.INVALID_PLAN
        if sequence_id in last.failed:
            return "its input failed in the step before", last.failed[sequence_id]
        if sequence_id not in last.tokens:
            message = "it waits for a token that the step before did not sample"
            return message, ErrorCode.INVALID_PLAN
        return None

    def _check_writes(
        self, plan: StepPlan, i: int, writers: dict[int, SequenceId], found: Findings
    ) -> None:
        """No two chunks may write into one block."""
        size, start = self._spec.block_size, plan.starts[i]
        last = (start + plan.lengths[i] - 1) // size
        sequence_id = plan.sequences[i].sequence_id
        for block_id in plan.table_buffers[i][start // size : last + 1]:
            other = writers.setdefault(block_id, sequence_id)
            if other != sequence_id:
                problem = f"block {block_id} would be written by two sequences"
                found.stop(sequence_id, problem)
                found.stop(other, problem)

    def _check_reads(self, plan: StepPlan, writers: dict[int, SequenceId], found: Findings) -> None:
        """No chunk may attend to a block that another one writes into."""
        written = list(writers)
        self._is_written[written] = True
        for i, spec in enumerate(plan.sequences):
            if spec.sequence_id in found.stopped:
                continue
            needed = -(-(plan.starts[i] + plan.lengths[i]) // self._spec.block_size)
            table = np.asarray(plan.table_buffers[i][:needed])
            for block_id in table[self._is_written[table]].tolist():
                writer = writers[block_id]
                if writer != spec.sequence_id:
                    problem = f"block {block_id} would be written by one sequence, read by another"
                    found.stop(spec.sequence_id, problem)
                    found.stop(writer, problem)
        self._is_written[written] = False

    def _check_copies(self, plan: StepPlan, found: Findings) -> list[int]:
        """A copy that cannot run fails the sequences whose tables hold its destination."""
        pairs = list(zip(plan.copy_sources, plan.copy_destinations, strict=True))
        blocks = range(self._spec.num_blocks)
        good = [i for i, (a, b) in enumerate(pairs) if a in blocks and b in blocks and a != b]
        bad = {pairs[i][1] for i in set(range(len(pairs))) - set(good)}
        for i, spec in enumerate(plan.sequences if bad else ()):
            if not bad.isdisjoint(plan.table_buffers[i][: plan.table_lengths[i]]):
                found.stop(spec.sequence_id, "a block copy into its table has a wrong block id")
        return good


def _columns_fit(plan: StepPlan) -> bool:
    columns = (
        plan.starts,
        plan.lengths,
        plan.token_buffers,
        plan.token_lengths,
        plan.table_buffers,
        plan.table_lengths,
        plan.num_samples,
    )
    counts = (plan.num_samples, plan.token_lengths, plan.table_lengths)
    return (
        all(len(column) == len(plan.sequences) for column in columns)
        and all(min(column, default=0) >= 0 for column in counts)
        and sum(plan.num_samples) == len(plan.sampled)
        and len(plan.copy_sources) == len(plan.copy_destinations)
    )


def _refused_whole(plan: StepPlan, message: str, block_size: int) -> CheckedPlan:
    found = Findings()
    for spec in (*plan.sequences, *plan.sampled):
        found.add(spec.sequence_id, message)
    nothing = read_chunks(StepPlan(step_id=plan.step_id), [], block_size)
    return CheckedPlan(chunks=[], columns=nothing, copies=[], errors=found.errors)


def _fail_samples(plan: StepPlan, chunks: list[int], found: Findings) -> None:
    """Who samples from a chunk that cannot run fails for the chunk's reason."""
    running = set(chunks)
    for i, first, count in sample_ranges(plan):
        if i not in running:
            problem = found.errors[plan.sequences[i].sequence_id]
            for spec in plan.sampled[first : first + count]:
                found.add(spec.sequence_id, problem.message, problem.code)
