"""POST /v1/chat/completions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Send

from common.errors import InvalidRequestError
from scheduler_service.api.chat_messages import check_messages, render_messages
from scheduler_service.api.choice import Delta
from scheduler_service.api.fields import Fields
from scheduler_service.api.generate_request import GenerateRequest
from scheduler_service.api.generation import Generation
from scheduler_service.api.http.answer import raise_failure, send_json
from scheduler_service.api.http.body import read_body
from scheduler_service.api.http.chat_shapes import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatMessage,
)
from scheduler_service.api.http.event_stream import EventStream
from scheduler_service.api.http.logprobs import ChatLogprobs, chat_logprobs
from scheduler_service.api.http.options import (
    AnswerOptions,
    check_model_name,
    read_answer_options,
    read_request_id,
    refuse_unsupported,
)
from scheduler_service.api.http.shapes import OptionalUsage, usage_of
from scheduler_service.api.http.watched import WatchedResponse
from scheduler_service.api.sampling import MAX_LOGPROBS, MAX_MAX_TOKENS, read_sampling
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service


def routes(service: Service) -> list[Route]:
    async def chat(request: Request) -> Response:
        arrived_at = time.monotonic()
        ask = await read_body(request, partial(_read, service.model))
        return WatchedResponse(partial(_answer, service, ask, arrived_at))

    return [Route("/v1/chat/completions", chat, methods=["POST"])]


class _Ask(NamedTuple):
    request: GenerateRequest
    """Without its prompt, which the template makes of the messages."""
    options: AnswerOptions
    messages: list[dict[str, Any]]
    add_generation_prompt: bool


async def _answer(service: Service, ask: _Ask, arrived_at: float, send: Send) -> None:
    model, options = service.model, ask.options
    prompt = await render_messages(
        ask.messages, model, add_generation_prompt=ask.add_generation_prompt
    )
    request = dataclasses.replace(ask.request, prompts=(prompt,))
    async with service.generate(request, arrived_at) as generation:
        teller = _Teller(request.request_id, model, options, generation)
        if options.is_streamed:
            await teller.stream(EventStream(send))
        else:
            await send_json(send, teller.answer(await generation.collect()))


def _read(model: ServedModel, fields: Fields) -> _Ask:
    check_model_name(fields, model)
    refuse_unsupported(fields)
    if fields.has("prompt_logprobs"):
        raise InvalidRequestError(
            "prompt_logprobs is not supported here: send the prompt to /v1/completions",
            field="prompt_logprobs",
        )
    return _Ask(
        _read_request(model, fields),
        read_answer_options(fields),
        check_messages(fields.get("messages")),
        fields.flag("add_generation_prompt") is not False,
    )


def _read_request(model: ServedModel, fields: Fields) -> GenerateRequest:
    max_tokens = _max_tokens(fields)
    sampling = read_sampling(
        fields,
        model,
        max_tokens=max_tokens,
        num_logprobs=_num_logprobs(fields),
        num_prompt_logprobs=None,
    )
    wants_newer = fields.has("max_completion_tokens")
    return GenerateRequest(
        request_id=read_request_id(fields, "chatcmpl"),
        prompts=(),
        add_special_tokens=fields.flag("add_special_tokens") or False,
        max_tokens=max_tokens,
        written_names={
            "prompt": "messages",
            "max_tokens": "max_completion_tokens" if wants_newer else "max_tokens",
        },
        **sampling,
    )


def _max_tokens(fields: Fields) -> int | None:
    """max_completion_tokens is the newer name and wins."""
    remedy = "leave it out for as many as the context takes"
    older = fields.integer("max_tokens", 1, MAX_MAX_TOKENS, remedy=remedy)
    newer = fields.integer("max_completion_tokens", 1, MAX_MAX_TOKENS, remedy=remedy)
    return older if newer is None else newer


def _num_logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs") or False
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top and not wanted:
        raise InvalidRequestError("top_logprobs needs logprobs true", field="top_logprobs")
    return (top or 0) if wanted else None


class _Teller:
    """Tells one generation in the shapes of this route."""

    def __init__(
        self, answer_id: str, model: ServedModel, options: AnswerOptions, generation: Generation
    ) -> None:
        self._id = answer_id
        self._model = model
        self._options = options
        self._names = options.token_names(model.tokenizer)
        self._generation = generation
        self._created = int(time.time())
        self._introduced: set[int] = set()

    def answer(self, deltas: list[Delta]) -> ChatAnswer:
        raise_failure(deltas)
        return ChatAnswer(
            id=self._id,
            created=self._created,
            model=self._model.name,
            choices=[self._choice(delta) for delta in deltas],
            usage=usage_of(self._generation),
            prompt_token_ids=self._prompt_token_ids(),
        )

    async def stream(self, events: EventStream) -> None:
        async with events.telling_errors():
            while (deltas := await self._generation.next()) is not None:
                raise_failure(deltas)
                await events.write(self._chunks(deltas))
            if self._options.stream_options.include_usage:
                await events.write([self._chunk([], usage_of(self._generation))])
            await events.end()

    def _choice(self, delta: Delta) -> ChatChoice:
        assert delta.end is not None
        return ChatChoice(
            index=delta.index,
            message=ChatMessage(content=delta.text, role="assistant"),
            logprobs=self._logprobs(delta),
            finish_reason=delta.end.reason,
            stop_reason=delta.end.stop_reason,
            token_ids=delta.token_ids if self._options.return_token_ids else UNSET,
        )

    def _chunks(self, deltas: list[Delta]) -> Iterator[ChatChunk]:
        usage = self._options.stream_options.usage_of_chunk(self._generation)
        for delta in deltas:
            if delta.index not in self._introduced:
                self._introduced.add(delta.index)
                role = ChatMessage(content="", role="assistant")
                chunk = self._chunk([ChatChunkChoice(delta.index, role, None, None)], usage)
                chunk.prompt_token_ids = self._prompt_token_ids()
                yield chunk
            if self._has_news(delta):
                yield self._chunk([self._chunk_choice(delta)], usage)

    def _has_news(self, delta: Delta) -> bool:
        """A held-back text alone is none."""
        shows_tokens = self._options.return_token_ids and delta.token_ids
        return bool(delta.text or delta.end or delta.entries or shows_tokens)

    def _chunk_choice(self, delta: Delta) -> ChatChunkChoice:
        end = delta.end
        return ChatChunkChoice(
            index=delta.index,
            delta=ChatMessage(content=delta.text),
            logprobs=self._logprobs(delta),
            finish_reason=None if end is None else end.reason,
            stop_reason=UNSET if end is None else end.stop_reason,
            token_ids=delta.token_ids if self._options.return_token_ids else UNSET,
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: OptionalUsage) -> ChatChunk:
        return ChatChunk(self._id, self._created, self._model.name, choices, usage)

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        if self._generation.runs[0].submission.params.num_logprobs is None:
            return None
        return chat_logprobs(delta.entries, self._model.tokenizer, self._names)

    def _prompt_token_ids(self) -> list[int] | UnsetType:
        if not self._options.return_token_ids:
            return UNSET
        return self._generation.runs[0].submission.prompt_token_ids.tolist()
