"""An executor whose KV can be inspected: each slot of its pool says which prefix it belongs to.

A sampled token is a function of the slots read through the block table, and every read is checked:
a wrong table, an early free, a bad copy or a stale read ends in `ShadowError` at once, or in
wrong tokens. It executes plans one at a time, as the device thread does; a test delays, repeats,
drops or reorders results by what it does with them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from common.plan import (
    ErrorCode,
    PromptLogprobs,
    SequenceError,
    SequenceId,
    SequenceSpec,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from tests.support.shadow_model import ShadowModel, Slot, append_slots
from tests.support.shadow_plan import check_plan


class ShadowError(AssertionError):
    """The plan read KV that is not there, or would damage another sequence's."""


class DeviceDiedError(RuntimeError):
    """The scripted death of the device."""


def _no_root(_: SequenceSpec) -> int:
    return 0


@dataclass(slots=True, eq=False)
class _Row:
    """What the stream remembers of a sequence, and its slots as they have to be."""

    spec: SequenceSpec
    table: array[int] = field(default_factory=lambda: array("i"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    slots: list[Slot] = field(default_factory=list)


class ShadowExecutor:
    """Executes plans on a pool of slots. One instance is one incarnation."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int = 1000,
        *,
        model: ShadowModel | None = None,
        root_of: Callable[[SequenceSpec], int] = _no_root,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.model = model or ShadowModel(vocab_size=vocab_size)
        self.num_steps = 0
        self.num_computed_tokens = 0
        self.num_copies = 0
        self._root_of = root_of
        self._pool: list[Slot | None] = [None] * (num_blocks * block_size)
        self._rows: dict[SequenceId, _Row] = {}
        self._samples: dict[SequenceId, int | None] = {}
        """Of the last step on this stream; None where the sequence failed."""
        self._spoilt: set[SequenceId] = set()
        """Failed in the last step; a chunk planned before that was known fails as well."""
        self._last_step_id: int | None = None
        self._failing: dict[SequenceId, ErrorCode] = {}
        self._dies_at: int | None = None

    # Scripting

    def fail(self, sequence_id: SequenceId, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        """The next step that names the sequence fails it alone."""
        self._failing[sequence_id] = code

    def die_at(self, step_id: int) -> None:
        """`execute` of that step raises `DeviceDiedError` before anything is written."""
        self._dies_at = step_id

    def forget_samples(self) -> None:
        """The stream ended: row memory and last samples are gone, the pool stays."""
        self._samples.clear()
        self._spoilt.clear()
        self._rows.clear()
        self._last_step_id = None

    def poison_block(self, block_id: int) -> None:
        """Makes any read of the block fail until it is written again."""
        first = block_id * self.block_size
        self._pool[first : first + self.block_size] = [None] * self.block_size

    # The device

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.step_id == self._dies_at:
            raise DeviceDiedError(f"step {plan.step_id}")
        if self._last_step_id is not None and plan.step_id <= self._last_step_id:
            raise ShadowError(f"step {plan.step_id} after step {self._last_step_id}")
        problem = check_plan(plan, self.num_blocks, self.block_size, self.model.vocab_size)
        if problem is not None:
            raise ShadowError(f"step {plan.step_id}: {problem}")
        for sequence_id in plan.released:
            self._rows.pop(sequence_id, None)
        self._copy_blocks(plan)
        errors: dict[SequenceId, SequenceError] = {}
        rows = [self._take_in(plan, i, errors) for i in range(plan.num_chunks)]
        self._check_reads(plan, rows)
        self._write(plan, rows)
        result = self._sample(plan, rows, errors)
        self._spoilt = _spoilt(plan, errors)
        self._last_step_id = plan.step_id
        self.num_steps += 1
        return result

    def _copy_blocks(self, plan: StepPlan) -> None:
        size = self.block_size
        for source, destination in zip(plan.copy_sources, plan.copy_destinations, strict=True):
            block = self._pool[source * size : (source + 1) * size]
            self._pool[destination * size : (destination + 1) * size] = block
            self.num_copies += 1

    def _take_in(
        self, plan: StepPlan, chunk: int, errors: dict[SequenceId, SequenceError]
    ) -> _Row | None:
        """Brings the row up to date; None if the sequence cannot be computed."""
        spec = plan.sequences[chunk]
        sequence_id = spec.sequence_id
        if sequence_id in self._spoilt:
            errors[sequence_id] = self._error(sequence_id, ErrorCode.NON_FINITE)
            return None
        end = plan.starts[chunk] + plan.lengths[chunk]
        tokens = plan.token_buffers[chunk][: min(plan.token_lengths[chunk], end)]
        if len(tokens) < end:
            if plan.step_id - 1 != self._last_step_id or sequence_id not in self._samples:
                raise ShadowError(f"{self._name(plan, spec)} takes a sample that does not exist")
            sample = self._samples[sequence_id]
            if sample is None:
                errors[sequence_id] = self._error(sequence_id, ErrorCode.INTERNAL)
                return None
            tokens.append(sample)
        row = self._rows.setdefault(sequence_id, _Row(spec))
        if row.spec != spec and row.spec.params != spec.params:
            raise ShadowError(f"{self._name(plan, spec)} changed while its row lived")
        table = plan.table_buffers[chunk][: plan.table_lengths[chunk]]
        if table[: len(row.table)] != row.table:
            raise ShadowError(f"{self._name(plan, spec)} has a table that did not only grow")
        row.table = table
        known = min(len(row.tokens), end)
        if tokens[:known] != row.tokens[:known]:
            raise ShadowError(f"{self._name(plan, spec)} has a history that did not only grow")
        append_slots(row.slots, tokens[known:], self._root_of(spec))
        row.tokens.extend(tokens[known:])
        return row

    def _check_reads(self, plan: StepPlan, rows: list[_Row | None]) -> None:
        """Before any write of this step: a chunk never relies on another chunk of the same step."""
        size, pool = self.block_size, self._pool
        for start, row in zip(plan.starts, rows, strict=True):
            if row is None:
                continue
            for first in range(0, start, size):
                count = min(size, start - first)
                base = row.table[first // size] * size
                if pool[base : base + count] != row.slots[first : first + count]:
                    raise ShadowError(
                        f"{self._name(plan, row.spec)} reads block {base // size} for positions "
                        f"{first}..{first + count - 1} of {start}: found "
                        f"{pool[base : base + count]}, needs {row.slots[first : first + count]}"
                    )

    def _write(self, plan: StepPlan, rows: list[_Row | None]) -> None:
        size = self.block_size
        for start, length, row in zip(plan.starts, plan.lengths, rows, strict=True):
            if row is None:
                continue
            for position in range(start, start + length):
                slot = row.table[position // size] * size + position % size
                self._pool[slot] = row.slots[position]
            self.num_computed_tokens += length

    def _sample(
        self, plan: StepPlan, rows: list[_Row | None], errors: dict[SequenceId, SequenceError]
    ) -> StepResult:
        samples: dict[SequenceId, int | None] = {}
        tokens = array("i")
        logprobs: list[TokenLogprobs | None] = []
        prompt_logprobs: list[PromptLogprobs] = []
        first = 0
        for i, row in enumerate(rows):
            specs = plan.sampled[first : first + plan.num_samples[i]]
            first += plan.num_samples[i]
            self._fail_scripted((plan.sequences[i], *specs), errors)
            if plan.sequences[i].sequence_id in errors:
                self._spoil(plan, i)
            if row is not None and plan.sequences[i].sequence_id not in errors:
                prompt_logprobs.extend(self._prompt_logprobs(plan, i, row))
            for spec in specs:
                token, entry = self._sample_one(plan, i, row, spec, errors)
                samples[spec.sequence_id] = token
                tokens.append(token or 0)
                logprobs.append(entry)
        self._samples = samples
        return StepResult(
            step_id=plan.step_id,
            tokens=tokens,
            errors=tuple(errors.values()),
            logprobs=logprobs if any(logprobs) else None,
            prompt_logprobs=tuple(prompt_logprobs),
        )

    def _spoil(self, plan: StepPlan, chunk: int) -> None:
        """A chunk that failed leaves nothing readable in the slots it was to write."""
        start, table = plan.starts[chunk], plan.table_buffers[chunk]
        for position in range(start, start + plan.lengths[chunk]):
            block, offset = divmod(position, self.block_size)
            self._pool[table[block] * self.block_size + offset] = None

    def _sample_one(
        self,
        plan: StepPlan,
        chunk: int,
        row: _Row | None,
        spec: SequenceSpec,
        errors: dict[SequenceId, SequenceError],
    ) -> tuple[int | None, TokenLogprobs | None]:
        if row is None and spec.sequence_id not in errors:
            errors[spec.sequence_id] = self._error(spec.sequence_id, ErrorCode.INTERNAL)
        if row is None or spec.sequence_id in errors:
            return None, None
        last = row.slots[plan.starts[chunk] + plan.lengths[chunk] - 1]
        token = self.model.next_token(last, spec.params, spec.index, spec.num_prompt_tokens)
        count = spec.params.num_logprobs
        return token, None if count is None else self.model.logprobs(last, token, count)

    def _prompt_logprobs(self, plan: StepPlan, chunk: int, row: _Row) -> list[PromptLogprobs]:
        """Logits of position p speak about prompt token p + 1."""
        count = row.spec.params.num_prompt_logprobs
        first = plan.starts[chunk] + 1
        end = min(first + plan.lengths[chunk], row.spec.num_prompt_tokens)
        if count is None or first >= end:
            return []
        entries = tuple(
            self.model.logprobs(row.slots[p - 1], plan.token_buffers[chunk][p], count)
            for p in range(first, end)
        )
        return [
            PromptLogprobs(
                sequence_id=row.spec.sequence_id, first_position=first, positions=entries
            )
        ]

    def _fail_scripted(
        self, specs: tuple[SequenceSpec, ...], errors: dict[SequenceId, SequenceError]
    ) -> None:
        for spec in specs:
            code = self._failing.pop(spec.sequence_id, None)
            if code is not None:
                errors[spec.sequence_id] = self._error(spec.sequence_id, code)

    @staticmethod
    def _error(sequence_id: SequenceId, code: ErrorCode) -> SequenceError:
        return SequenceError(sequence_id=sequence_id, code=code, message="scripted failure")

    @staticmethod
    def _name(plan: StepPlan, spec: SequenceSpec) -> str:
        return f"step {plan.step_id}: sequence {spec.sequence_id}"


def _spoilt(plan: StepPlan, errors: dict[SequenceId, SequenceError]) -> set[SequenceId]:
    """Sequences that failed, and what was sampled from a chunk that did: forks share its blocks."""
    spoilt, first = set(errors), 0
    for spec, count in zip(plan.sequences, plan.num_samples, strict=True):
        if spec.sequence_id in errors:
            spoilt.update(fork.sequence_id for fork in plan.sampled[first : first + count])
        first += count
    return spoilt
