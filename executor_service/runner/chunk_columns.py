"""Chunks of a plan as columns that numpy looks at together.

Hardly any chunk is wrong, and one by one they take a step's time: of 256 decodes at 2048 tokens
three short slices each cost milliseconds, all of them as one a tenth of that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.plan import TOKEN_TYPECODE, StepPlan

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkColumns:
    """One entry per chunk, and two columns with one chunk's entries behind another's."""

    starts: Ints
    lengths: Ints
    num_tokens: Ints
    """Of the chunk's own tokens, those that the plan knows."""
    num_blocks: Ints
    """That cover the chunk and what is before it."""
    tokens: Ids
    """Flat: the chunk's own tokens, `num_tokens` of each."""
    blocks: Ids
    """Flat: the first `num_blocks` of each table."""


def read_chunks(plan: StepPlan, chunks: Sequence[int], block_size: int) -> ChunkColumns:
    """The named chunks of a plan whose columns have one length.

    What a plan says beyond its buffers is left out, so that flat columns are shorter than their
    counts add up to. Nothing is raised, however wrong it is.
    """
    starts, lengths, known = np.array(
        [
            column if len(chunks) == len(column) else [column[i] for i in chunks]
            for column in (plan.starts, plan.lengths, plan.token_lengths)
        ],
        np.int64,
    )
    ends = starts + lengths
    known_ends = np.maximum(np.minimum(known, ends), starts)
    num_blocks = (ends + (block_size - 1)) // block_size
    return ChunkColumns(
        starts=starts,
        lengths=lengths,
        num_tokens=known_ends - starts,
        num_blocks=num_blocks,
        tokens=_flat(
            buffer[first:end]
            for buffer, first, end in zip(
                (plan.token_buffers[i] for i in chunks),
                starts.tolist(),
                known_ends.tolist(),
                strict=True,
            )
        ),
        blocks=_flat(
            plan.table_buffers[i][:end] for i, end in zip(chunks, num_blocks.tolist(), strict=True)
        ),
    )


def ranges(firsts: Ints, counts: Ints) -> Ints:
    """[firsts[i], firsts[i] + counts[i]) of each i, one behind the other. No count is 0."""
    ends = np.cumsum(counts)
    if not len(ends) or ends[-1] == len(ends):  # a plan of decodes
        return firsts
    within: Ints = np.arange(ends[-1]) + np.repeat(firsts - (ends - counts), counts)
    return within


def _flat(slices: Iterable[array[int]]) -> Ids:
    """Of slices, which are copies: a buffer that numpy looks at cannot grow, and it does on another
    thread."""
    flat = array(TOKEN_TYPECODE)
    for values in slices:
        flat += values
    return np.array(flat, np.int32)
