"""Logprobs as the two OpenAI routes show them."""

from __future__ import annotations

import msgspec

from common.plan import TokenLogprobs
from scheduler_service.api.choice import TokenEntry
from scheduler_service.api.http.token_names import TokenNames
from scheduler_service.api.tokenizer import Tokenizer

_LEAST = -9999.0
"""JSON has no -inf."""


class CompletionLogprobs(msgspec.Struct):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]
    refusal: None = None


def completion_logprobs(
    entries: list[TokenEntry], names: TokenNames, *, first_offset: int
) -> CompletionLogprobs:
    """`first_offset` is the length of an echoed prompt."""
    return CompletionLogprobs(
        text_offset=[first_offset + entry.text_offset for entry in entries],
        token_logprobs=[_finite(entry.logprobs.logprobs[0]) for entry in entries],
        tokens=[_name(entry, names) for entry in entries],
        top_logprobs=[top_by_name(_name(entry, names), entry.logprobs, names) for entry in entries],
    )


def chat_logprobs(
    entries: list[TokenEntry], tokenizer: Tokenizer, names: TokenNames
) -> ChatLogprobs:
    return ChatLogprobs([_chat_logprob(entry, tokenizer, names) for entry in entries])


def top_by_name(name: str, logprobs: TokenLogprobs, names: TokenNames) -> dict[str, float]:
    """The chosen token, called `name`, and the best ones, the best first after it."""
    chosen = logprobs.token_ids[0]
    top = {name: _finite(logprobs.logprobs[0])}
    for token_id, logprob in zip(logprobs.token_ids[1:], logprobs.logprobs[1:], strict=True):
        if token_id != chosen:
            top.setdefault(names.alternative(token_id), _finite(logprob))
    return top


def _name(entry: TokenEntry, names: TokenNames) -> str:
    return names.sampled(entry.logprobs.token_ids[0], entry.piece)


def _chat_logprob(entry: TokenEntry, tokenizer: Tokenizer, names: TokenNames) -> ChatLogprob:
    ids, values = entry.logprobs.token_ids, entry.logprobs.logprobs
    return ChatLogprob(
        token=_name(entry, names),
        logprob=_finite(values[0]),
        bytes=list(tokenizer.token_bytes(ids[0])),
        top_logprobs=[
            TopLogprob(
                names.alternative(token_id),
                _finite(logprob),
                list(tokenizer.token_bytes(token_id)),
            )
            for token_id, logprob in zip(ids[1:], values[1:], strict=True)
        ],
    )


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
