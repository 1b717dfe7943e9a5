"""Looks for everything in a plan that could corrupt the pool or crash a kernel, before either can.

A finding costs its own sequences the step, with INVALID_PLAN; all others run. The scheduler keeps
to these rules by construction, so a finding is a fault of software, not of a request.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from common.plan import ErrorCode, SamplingParams, SequenceError, SequenceId, StepPlan
from executor_service.runner.spec import ExecutorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSamples:
    """Outcome of the step before on this stream, by sequence."""

    tokens: Mapping[SequenceId, int] = field(default_factory=dict)
    failed: Mapping[SequenceId, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlan:
    chunks: list[int]
    """Plan indexes of the chunks that can run."""
    copies: list[int]
    """Indexes of the block copies that can run."""
    errors: dict[SequenceId, SequenceError]


class PlanChecker:
    """The rules, against one executor's limits."""

    def __init__(self, spec: ExecutorSpec) -> None:
        self._spec = spec
        self._is_written = np.zeros(spec.num_blocks, np.bool_)
        """Of each block, while a plan is checked."""

    def check(self, plan: StepPlan, last: LastSamples) -> CheckedPlan:
        if not _columns_fit(plan):
            return _refused_whole(plan, "the plan's columns do not fit together")
        found = _Findings()
        self._check_chunks(plan, last, found)
        copies = self._check_copies(plan, found)
        self._check_samples(plan, found)
        chunks = [
            i for i, spec in enumerate(plan.sequences) if spec.sequence_id not in found.stopped
        ]
        running = set(chunks)
        for i, first, count in _sample_ranges(plan):
            if i not in running:
                problem = found.errors[plan.sequences[i].sequence_id]
                for spec in plan.sampled[first : first + count]:
                    found.add(spec.sequence_id, problem.message, problem.code)
        return CheckedPlan(chunks=chunks, copies=copies, errors=found.errors)

    def _check_chunks(self, plan: StepPlan, last: LastSamples, found: _Findings) -> None:
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
            if problem is None and i >= self._spec.max_rows:
                problem = f"the step exceeds {self._spec.max_rows} chunks"
            if problem is not None:
                found.stop(spec.sequence_id, problem)
                continue
            self._check_input(plan, i, last, found)
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
        if not _all_below(plan.table_buffers[i][:needed], self._spec.num_blocks):
            return f"a block id is not below {self._spec.num_blocks}"
        known = min(plan.token_lengths[i], end)
        if not _all_below(plan.token_buffers[i][start:known], self._spec.vocab_size):
            return f"a token id is not below {self._spec.vocab_size}"
        return None

    def _check_input(self, plan: StepPlan, i: int, last: LastSamples, found: _Findings) -> None:
        """Every position needs a known token, but for the one sampled in the step before."""
        start, length, known = plan.starts[i], plan.lengths[i], plan.token_lengths[i]
        if known >= start + length:
            return
        sequence_id = plan.sequences[i].sequence_id
        if length != 1 or known != start:
            found.stop(sequence_id, f"{known} tokens do not cover [{start}, {start + length})")
        elif sequence_id in last.failed:
            code = last.failed[sequence_id]
            found.stop(sequence_id, "its input failed in the step before", code)
        elif sequence_id not in last.tokens:
            found.stop(sequence_id, "it waits for a token that the step before did not sample")

    def _check_writes(
        self, plan: StepPlan, i: int, writers: dict[int, SequenceId], found: _Findings
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

    def _check_reads(
        self, plan: StepPlan, writers: dict[int, SequenceId], found: _Findings
    ) -> None:
        """No chunk may attend to a block that another one writes into."""
        if len(plan.sequences) < 2:
            return
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

    def _check_copies(self, plan: StepPlan, found: _Findings) -> list[int]:
        """A copy that cannot run fails the sequences whose tables hold its destination."""
        pairs = list(zip(plan.copy_sources, plan.copy_destinations, strict=True))
        blocks = range(self._spec.num_blocks)
        good = [i for i, (a, b) in enumerate(pairs) if a in blocks and b in blocks and a != b]
        bad = {pairs[i][1] for i in set(range(len(pairs))) - set(good)}
        for i, spec in enumerate(plan.sequences if bad else ()):
            if not bad.isdisjoint(plan.table_buffers[i][: plan.table_lengths[i]]):
                found.stop(spec.sequence_id, "a block copy into its table has a wrong block id")
        return good

    def _check_samples(self, plan: StepPlan, found: _Findings) -> None:
        counts = Counter(spec.sequence_id for spec in plan.sampled)
        for i, first, count in _sample_ranges(plan):
            for spec in plan.sampled[first : first + count]:
                problem = _params_problem(spec.params, self._spec.vocab_size)
                if counts[spec.sequence_id] > 1:
                    problem = "the sequence is sampled twice in one step"
                if problem is None and reads_history(spec.params):
                    history = plan.token_buffers[i][: plan.token_lengths[i]]
                    if not _all_below(history, self._spec.vocab_size):
                        problem = f"a token id is not below {self._spec.vocab_size}"
                if problem is not None:
                    found.add(spec.sequence_id, problem)


class _Findings:
    """Errors by sequence, the first of each; `stopped` are those whose chunk must not run."""

    def __init__(self) -> None:
        self.errors: dict[SequenceId, SequenceError] = {}
        self.stopped: set[SequenceId] = set()

    def add(
        self,
        sequence_id: SequenceId,
        message: str,
        code: ErrorCode = ErrorCode.INVALID_PLAN,
    ) -> None:
        error = SequenceError(sequence_id=sequence_id, code=code, message=message)
        self.errors.setdefault(sequence_id, error)

    def stop(
        self,
        sequence_id: SequenceId,
        message: str,
        code: ErrorCode = ErrorCode.INVALID_PLAN,
    ) -> None:
        self.add(sequence_id, message, code)
        self.stopped.add(sequence_id)


def reads_history(params: SamplingParams) -> bool:
    """Whether sampling looks at earlier tokens."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def _params_problem(params: SamplingParams, vocab_size: int) -> str | None:
    floats = (
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        *(bias for _, bias in params.logit_bias),
    )
    if not all(map(math.isfinite, floats)):
        return "a sampling parameter is not finite"
    if params.temperature < 0 or params.repetition_penalty <= 0 or params.top_k < 0:
        return "temperature, top_k or repetition_penalty is out of range"
    if not (0 < params.top_p <= 1 and 0 <= params.min_p <= 1):
        return "top_p or min_p is out of range"
    if any(k is not None and k < 0 for k in (params.num_logprobs, params.num_prompt_logprobs)):
        return "a number of logprobs is negative"
    ids = [*params.stop_token_ids, *(token for token, _ in params.logit_bias)]
    if not all(0 <= token < vocab_size for token in ids):
        return f"a stop or bias token id is not below {vocab_size}"
    return None


def _all_below(ids: object, limit: int) -> bool:
    values = np.asarray(ids)
    return not len(values) or bool(values.min() >= 0 and values.max() < limit)


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
    return (
        all(len(column) == len(plan.sequences) for column in columns)
        and all(count >= 0 for count in plan.num_samples)
        and sum(plan.num_samples) == len(plan.sampled)
        and len(plan.copy_sources) == len(plan.copy_destinations)
        and all(length >= 0 for length in (*plan.token_lengths, *plan.table_lengths))
    )


def _refused_whole(plan: StepPlan, message: str) -> CheckedPlan:
    found = _Findings()
    for spec in (*plan.sequences, *plan.sampled):
        found.add(spec.sequence_id, message)
    return CheckedPlan(chunks=[], copies=[], errors=found.errors)


def _sample_ranges(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(chunk, first entry of `sampled`, how many) for each chunk that samples."""
    ranges, first = [], 0
    for i, count in enumerate(plan.num_samples):
        if count:
            ranges.append((i, first, count))
        first += count
    return ranges
