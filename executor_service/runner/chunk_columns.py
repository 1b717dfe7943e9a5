"""Chunks of a plan as columns, with their blocks and tokens behind one another.

Plain lists and arrays on purpose. A step leaves nothing in the caches but weights, so what counts
for few chunks is how much code looks at them: numpy and torch took a tenth of a step.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add, sub

from common.plan import TOKEN_TYPECODE, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkColumns:
    """One entry per chunk, and two columns with one chunk's entries behind another's."""

    starts: array[int]
    lengths: array[int]
    ends: list[int]
    """starts + lengths"""
    num_tokens: list[int]
    """Of the chunk's own tokens, those that the plan knows."""
    num_blocks: list[int]
    """That cover the chunk and what is before it."""
    tokens: array[int]
    """The chunk's own tokens, `num_tokens` of each."""
    blocks: array[int]
    """The first `num_blocks` of each table."""


def read_chunks(plan: StepPlan, chunks: Sequence[int], block_size: int) -> ChunkColumns:
    """The named chunks of a plan whose columns have one length.

    What a plan says beyond its buffers is left out, so that `tokens` and `blocks` are shorter than
    their counts add up to. Nothing is raised, however wrong it is.
    """
    starts, lengths, known = plan.starts, plan.lengths, plan.token_lengths
    token_buffers, table_buffers = plan.token_buffers, plan.table_buffers
    if len(chunks) != plan.num_chunks:
        starts, lengths, known = (_picked(c, chunks) for c in (starts, lengths, known))
        token_buffers = [token_buffers[i] for i in chunks]
        table_buffers = [table_buffers[i] for i in chunks]
    ends = list(map(add, starts, lengths))
    known_ends = list(map(max, starts, map(min, known, ends)))
    num_blocks = [-(-end // block_size) for end in ends]
    return ChunkColumns(
        starts=starts,
        lengths=lengths,
        ends=ends,
        num_tokens=list(map(sub, known_ends, starts)),
        num_blocks=num_blocks,
        tokens=_joined(map(_part, token_buffers, starts, known_ends)),
        blocks=_joined(map(_part, table_buffers, [0] * len(ends), num_blocks)),
    )


def _picked(column: array[int], chunks: Sequence[int]) -> array[int]:
    return array(TOKEN_TYPECODE, [column[i] for i in chunks])


def _part(buffer: array[int], first: int, end: int) -> array[int]:
    """A copy: a buffer that somebody looks at cannot grow, and it does on another thread."""
    return buffer[first:end]


def _joined(parts: Iterable[array[int]]) -> array[int]:
    joined = array(TOKEN_TYPECODE)
    for part in parts:
        joined += part
    return joined
