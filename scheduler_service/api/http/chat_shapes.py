"""JSON of /v1/chat/completions. UNSET fields are left out."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from scheduler_service.api.http.logprobs import ChatLogprobs
from scheduler_service.api.http.shapes import OptionalUsage, Usage


class ChatMessage(msgspec.Struct):
    content: str | None | UnsetType = UNSET
    role: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: OptionalUsage = UNSET
    object: str = "chat.completion.chunk"
    prompt_token_ids: list[int] | UnsetType = UNSET
