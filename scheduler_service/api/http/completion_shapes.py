"""JSON of /v1/completions. UNSET fields are left out."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from scheduler_service.api.http.logprobs import CompletionLogprobs
from scheduler_service.api.http.shapes import OptionalUsage


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    """On a choice's first chunk alone."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionAnswer(msgspec.Struct):
    """A whole answer, or one chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: OptionalUsage = UNSET
    object: str = "text_completion"
