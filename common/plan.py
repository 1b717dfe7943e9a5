"""The scheduler's orders for one iteration and the executor's answer.

A `StepPlan` is a set of parallel columns, one entry per chunk. Token histories and block tables
appear in it as *views*: an append-only buffer and a length. Rule 1: nobody ever shortens or
rewrites such a buffer, so planning step s + 1 cannot change plan s while that is in flight. Rule 2:
a plan is complete: with the KV pool, it determines the step's results.

This module is the only one that `scheduler_service.core` may import from `common`, so it knows
nothing but the standard library.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, NewType

SequenceId = NewType("SequenceId", int)
BlockId = NewType("BlockId", int)

TOKEN_TYPECODE = "i"
"""array typecode of token histories and block tables: int32 everywhere we run."""

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature sampling is argmax: dividing by less overflows float32 logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What the executor needs to sample one sequence; ranges are checked where requests enter."""

    temperature: float = 1.0
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and outputs, each distinct token once."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """Philox key, 0 <= seed < 2^64."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    """Outputs before any of `stop_token_ids` may be sampled."""
    stop_token_ids: tuple[int, ...] = ()
    """Every id that ends the sequence, EOS too unless it is ignored. Masked, never acted on."""
    num_logprobs: int | None = None
    """None: no logprobs; 0: the sampled token's; k: also the k best."""
    num_prompt_logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceSpec:
    """What never changes about one sequence while it lives. Compared by identity."""

    sequence_id: SequenceId
    index: int
    """Choice index within the request; part of the Philox counter."""
    num_prompt_tokens: int
    """Tokens of the history that are prompt; the rest are outputs."""
    params: SamplingParams


class TokenView(NamedTuple):
    """The first `length` tokens of an append-only history."""

    buffer: array[int]
    length: int


class TableView(NamedTuple):
    """The first `length` block ids of an append-only block table."""

    buffer: array[int]
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceChunk:
    """One sequence's part of a step, materialised. For tests.

    Computes KV of positions [start, start + length). Position `len(tokens)`, if the chunk reaches
    it, takes the token sampled for this sequence in the step before on the same stream.
    """

    spec: SequenceSpec
    start: int
    length: int
    tokens: tuple[int, ...]
    block_ids: tuple[int, ...]
    samples: tuple[SequenceSpec, ...]


def _ids() -> array[int]:
    return array(TOKEN_TYPECODE)


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """Orders for one step, as parallel columns over its chunks. Never changed once sent.

    The first `num_decodes` chunks have length 1 and sample exactly their own sequence. A chunk's
    known tokens are `token_buffers[i][:token_lengths[i]]`. They cover start + length, or all
    but the last position of a length-1 chunk: that input is the token sampled for this sequence in
    the step before on this stream (run-ahead), which also counts for its penalties.
    """

    step_id: int
    num_decodes: int = 0
    sequences: list[SequenceSpec] = field(default_factory=list)
    starts: array[int] = field(default_factory=_ids)
    """Tokens of KV in place before the chunk (cached, computed or in flight)."""
    lengths: array[int] = field(default_factory=_ids)
    token_buffers: list[array[int]] = field(default_factory=list)
    token_lengths: array[int] = field(default_factory=_ids)
    table_buffers: list[array[int]] = field(default_factory=list)
    table_lengths: array[int] = field(default_factory=_ids)
    """Block ids known to the chunk; they cover start + length."""
    num_samples: array[int] = field(default_factory=_ids)
    """Sequences sampled from the last row of each chunk; 0 while a prompt is unfinished."""
    sampled: list[SequenceSpec] = field(default_factory=list)
    """Flat, in chunk order. Results are positional over this list."""
    copy_sources: array[int] = field(default_factory=_ids)
    copy_destinations: array[int] = field(default_factory=_ids)
    """Block copies, all done before the forward pass."""
    released: list[SequenceId] = field(default_factory=list)
    """Sequences whose stream memory ends before this plan: finished, aborted or preempted since."""
    masked: frozenset[SequenceId] = frozenset()
    """Sampled sequences that wait for a mask before sampling."""

    @property
    def num_chunks(self) -> int:
        return len(self.sequences)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def num_attended(self) -> int:
        """Positions that each token attends to, itself included, over all tokens."""
        decodes = self.num_decodes
        prompts = zip(self.starts[decodes:], self.lengths[decodes:], strict=True)
        by_prompts = sum(length * start + length * (length + 1) // 2 for start, length in prompts)
        return self.num_attended_by_decodes + by_prompts

    @property
    def num_attended_by_decodes(self) -> int:
        return sum(self.starts[: self.num_decodes]) + self.num_decodes

    def tokens(self, chunk: int) -> TokenView:
        return TokenView(self.token_buffers[chunk], self.token_lengths[chunk])

    def table(self, chunk: int) -> TableView:
        return TableView(self.table_buffers[chunk], self.table_lengths[chunk])

    def chunks(self) -> Iterator[SequenceChunk]:
        """Materialises every chunk, in order. O(tokens): never on the serving path."""
        first = 0
        for i, spec in enumerate(self.sequences):
            count = self.num_samples[i]
            yield SequenceChunk(
                spec=spec,
                start=self.starts[i],
                length=self.lengths[i],
                tokens=tuple(self.token_buffers[i][: self.token_lengths[i]]),
                block_ids=tuple(self.table_buffers[i][: self.table_lengths[i]]),
                samples=tuple(self.sampled[first : first + count]),
            )
            first += count


class ErrorCode(IntEnum):
    """Why one sequence failed alone. Numbers are executor.proto's."""

    INVALID_PLAN = 1
    NON_FINITE = 2
    NO_CANDIDATE = 3
    MASK_TIMEOUT = 4
    INTERNAL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceError:
    sequence_id: SequenceId
    code: ErrorCode
    message: str


class TokenLogprobs(NamedTuple):
    """Logprobs at one position, natural log, of the raw model logits."""

    rank: int
    """Of the chosen token, from 1."""
    token_ids: tuple[int, ...]
    """The chosen token first, then the best in falling order (the chosen one may be among them)."""
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Logprobs of prompt tokens from `first_position` on, one entry per position."""

    sequence_id: SequenceId
    first_position: int
    positions: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimings:
    """Durations of one step in nanoseconds; fields as in executor.proto."""

    queue_ns: int = 0
    prepare_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    mask_wait_ns: int = 0
    gap_ns: int = 0


@dataclass(slots=True, kw_only=True)
class StepResult:
    """The executor's answer to one plan."""

    step_id: int
    tokens: array[int]
    """One per entry of the plan's `sampled`, in its order; 0 where that sequence failed."""
    errors: tuple[SequenceError, ...] = ()
    logprobs: list[TokenLogprobs | None] | None = None
    """None, or one entry per token; an entry is None where the sequence did not ask."""
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    timings: StepTimings = StepTimings()
    plan_was_ready: bool = False
    """The plan was decoded already when the step before it ended."""
