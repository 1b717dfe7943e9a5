"""Logprobs as the two OpenAI routes show them.

A sampled token is shown as what it added to the text, so that tokens joined are the text; inside
a character that is nothing. An alternative has no place in the text: it is shown as its own text
or, if that is no valid UTF-8, as `bytes:\\xe2\\x82`.
"""

from __future__ import annotations

import msgspec

from common.plan import TokenLogprobs
from scheduler_service.api.choice import TokenEntry
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
    entries: list[TokenEntry], tokenizer: Tokenizer, *, first_offset: int
) -> CompletionLogprobs:
    """`first_offset` is the length of an echoed prompt."""
    return CompletionLogprobs(
        text_offset=[first_offset + entry.text_offset for entry in entries],
        token_logprobs=[_finite(entry.logprobs.logprobs[0]) for entry in entries],
        tokens=[entry.piece for entry in entries],
        top_logprobs=[top_by_name(entry.piece, entry.logprobs, tokenizer) for entry in entries],
    )


def chat_logprobs(entries: list[TokenEntry], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs([_chat_logprob(entry, tokenizer) for entry in entries])


def top_by_name(piece: str, logprobs: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, float]:
    """The chosen token and the best ones, the best first after it."""
    chosen = logprobs.token_ids[0]
    top = {piece: _finite(logprobs.logprobs[0])}
    for token_id, logprob in zip(logprobs.token_ids[1:], logprobs.logprobs[1:], strict=True):
        if token_id != chosen:
            top.setdefault(token_name(token_id, tokenizer), _finite(logprob))
    return top


def token_name(token_id: int, tokenizer: Tokenizer) -> str:
    content = tokenizer.token_bytes(token_id)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _chat_logprob(entry: TokenEntry, tokenizer: Tokenizer) -> ChatLogprob:
    ids, values = entry.logprobs.token_ids, entry.logprobs.logprobs
    return ChatLogprob(
        token=entry.piece,
        logprob=_finite(values[0]),
        bytes=list(tokenizer.token_bytes(ids[0])),
        top_logprobs=[
            TopLogprob(
                token_name(token_id, tokenizer),
                _finite(logprob),
                list(tokenizer.token_bytes(token_id)),
            )
            for token_id, logprob in zip(ids[1:], values[1:], strict=True)
        ],
    )


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
