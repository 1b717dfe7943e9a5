"""What the core has to tell since it was last asked. Columnar where entries are per token."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from common.plan import PromptLogprobs, SequenceId, TokenLogprobs
from scheduler_service.core.request import FinishReason


class SequenceKey(NamedTuple):
    """How a sequence is known outside the core, wherever it moves."""

    request_id: str
    choice: int


class SequenceAdmitted(NamedTuple):
    """First admission of a request's first sequence; forked children are not announced."""

    sequence_id: SequenceId
    key: SequenceKey
    num_cached_tokens: int


class SequencePreempted(NamedTuple):
    sequence_id: SequenceId
    key: SequenceKey
    num_computed_tokens: int
    """Confirmed KV given up; full blocks of it stay in the tree."""


class SequenceFinished(NamedTuple):
    sequence_id: SequenceId
    key: SequenceKey
    reason: FinishReason
    num_output_tokens: int
    """All outputs of the choice, prior ones included."""
    stop_token_id: int | None
    """The stop_token_ids entry (not EOS) that ended it."""
    message: str
    """Why, when reason is ERROR."""


@dataclass(slots=True)
class Events:
    """Everything since the last `Scheduler.take_events`, to apply admitted, tokens, finished.

    `keys[i]` gained `tokens[i]` (an end-of-sequence token included). A key may appear several
    times; its tokens are in order.
    """

    keys: list[SequenceKey] = field(default_factory=list)
    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By position in `keys`; only for sequences that asked."""
    prompt_logprobs: list[tuple[SequenceKey, PromptLogprobs]] = field(default_factory=list)
    admitted: list[SequenceAdmitted] = field(default_factory=list)
    preempted: list[SequencePreempted] = field(default_factory=list)
    finished: list[SequenceFinished] = field(default_factory=list)
