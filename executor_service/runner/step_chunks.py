"""What a step computes: the chunks that passed the checks, with every input token."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from common.plan import TOKEN_TYPECODE, SequenceId, StepPlan
from executor_service.runner.chunk_columns import ChunkColumns
from executor_service.runner.validate import CheckedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChunks:
    """Chunks lie one behind the other, as their tokens do."""

    chunks: list[int]
    """Plan indexes."""
    columns: ChunkColumns
    token_ids: array[int]
    first_rows: list[int]
    """First token of each chunk within the step; one more entry at the end."""


class SampleRow(NamedTuple):
    """A chunk that samples."""

    chunk: int
    """Plan index."""
    token: int
    """Row of the step: the chunk's last."""
    sampled: Sequence[int]
    """Indexes in the plan's `sampled`, those that failed left out; at least one."""


def step_chunks(
    plan: StepPlan, checked: CheckedPlan, pending: Mapping[SequenceId, int]
) -> StepChunks:
    """The chunks that can run. pending: the tokens that the step before sampled."""
    return StepChunks(
        chunks=checked.chunks,
        columns=checked.columns,
        token_ids=_token_ids(plan, checked, pending),
        first_rows=list(accumulate(checked.columns.lengths, initial=0)),
    )


def sample_rows(
    plan: StepPlan, failed: Collection[SequenceId], step: StepChunks
) -> Iterator[SampleRow]:
    """The chunks of the step from which somebody samples, in order."""
    ends = dict(zip(step.chunks, step.first_rows[1:], strict=True))
    first = 0
    for chunk, count in enumerate(plan.num_samples):
        wanted: Sequence[int] = range(first, first + count)
        first += count
        if failed:
            wanted = [i for i in wanted if plan.sampled[i].sequence_id not in failed]
        if wanted and chunk in ends:
            yield SampleRow(chunk, ends[chunk] - 1, wanted)


def _token_ids(
    plan: StepPlan, checked: CheckedPlan, pending: Mapping[SequenceId, int]
) -> array[int]:
    """The known tokens, and between them those that were pending: they are chunks of their own."""
    columns = checked.columns
    if all(columns.num_tokens):
        return columns.tokens
    token_ids = array(TOKEN_TYPECODE)
    first = 0
    for chunk, count in zip(checked.chunks, columns.num_tokens, strict=True):
        if count:
            token_ids += columns.tokens[first : first + count]
            first += count
        else:
            token_ids.append(pending[plan.sequences[chunk].sequence_id])
    return token_ids
