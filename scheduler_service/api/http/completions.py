"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Send

from scheduler_service.api.choice import Delta
from scheduler_service.api.fields import Fields
from scheduler_service.api.generate_request import GenerateRequest
from scheduler_service.api.generation import Generation
from scheduler_service.api.http.answer import raise_failure, send_json
from scheduler_service.api.http.body import read_body
from scheduler_service.api.http.completion_request import read_completion_request
from scheduler_service.api.http.completion_shapes import (
    CompletionAnswer,
    CompletionChoice,
    PromptLogprobs,
)
from scheduler_service.api.http.echo import Echo, prompt_logprobs
from scheduler_service.api.http.event_stream import EventStream
from scheduler_service.api.http.logprobs import CompletionLogprobs, completion_logprobs
from scheduler_service.api.http.options import AnswerOptions, read_answer_options
from scheduler_service.api.http.shapes import OptionalUsage, usage_of
from scheduler_service.api.http.watched import WatchedResponse
from scheduler_service.api.prompt_run import PromptRun
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service


def routes(service: Service) -> list[Route]:
    async def complete(request: Request) -> Response:
        arrived_at = time.monotonic()
        ask = await read_body(request, partial(_read, service.model))
        return WatchedResponse(partial(_answer, service, ask, arrived_at))

    return [Route("/v1/completions", complete, methods=["POST"])]


class _Ask(NamedTuple):
    request: GenerateRequest
    options: AnswerOptions
    shows_prompt_logprobs: bool


def _read(model: ServedModel, fields: Fields) -> _Ask:
    return _Ask(
        read_completion_request(fields, model),
        read_answer_options(fields),
        fields.has("prompt_logprobs"),
    )


async def _answer(service: Service, ask: _Ask, arrived_at: float, send: Send) -> None:
    async with service.generate(ask.request, arrived_at) as generation:
        teller = _Teller(service.model, ask, generation)
        if ask.options.is_streamed:
            await teller.stream(EventStream(send))
        else:
            await send_json(send, teller.answer(await generation.collect()))


class _Teller:
    """Tells one generation in the shapes of this route."""

    def __init__(self, model: ServedModel, ask: _Ask, generation: Generation) -> None:
        self._request, self._options, self._shows_prompt_logprobs = ask
        self._model = model
        self._names = self._options.token_names(model.tokenizer)
        self._generation = generation
        self._created = int(time.time())
        self._echoes: dict[int, Echo] = {}
        """By choice, of those that were told something."""

    def answer(self, deltas: list[Delta]) -> CompletionAnswer:
        raise_failure(deltas)
        return self._shape([self._choice(delta) for delta in deltas], usage_of(self._generation))

    async def stream(self, events: EventStream) -> None:
        async with events.telling_errors():
            while (deltas := await self._generation.next()) is not None:
                raise_failure(deltas)
                await events.write(self._chunks(deltas))
            if self._options.stream_options.include_usage:
                await events.write([self._shape([], usage_of(self._generation))])
            await events.end()

    def _chunks(self, deltas: list[Delta]) -> Iterator[CompletionAnswer]:
        usage = self._options.stream_options.usage_of_chunk(self._generation)
        for delta in deltas:
            if self._has_news(delta):
                yield self._shape([self._choice(delta)], usage)

    def _has_news(self, delta: Delta) -> bool:
        """A held-back text alone is none."""
        shows_tokens = self._options.return_token_ids and delta.token_ids
        return bool(delta.text or delta.end or delta.entries or shows_tokens)

    def _choice(self, delta: Delta) -> CompletionChoice:
        """Of the news in `delta`; a choice's first has the prompt before it, if that is echoed."""
        end = delta.end
        run = self._run_of(delta)
        is_first = delta.index not in self._echoes
        echo = self._echoes.setdefault(
            delta.index, Echo.of(run, self._generation, self._model, self._names)
        )
        return CompletionChoice(
            index=delta.index,
            text=echo.text + delta.text if is_first else delta.text,
            logprobs=self._logprobs(delta, echo, is_first=is_first),
            finish_reason=None if end is None else end.reason,
            stop_reason=None if end is None else end.stop_reason,
            token_ids=delta.token_ids if self._options.return_token_ids else UNSET,
            prompt_token_ids=self._prompt_token_ids(run) if is_first else UNSET,
            prompt_logprobs=self._prompt_logprobs(run),
        )

    def _logprobs(self, delta: Delta, echo: Echo, *, is_first: bool) -> CompletionLogprobs | None:
        if self._request.params.num_logprobs is None:
            return None
        shown = completion_logprobs(delta.entries, self._names, first_offset=len(echo.text))
        return echo.before(shown) if is_first else shown

    def _prompt_token_ids(self, run: PromptRun) -> list[int] | UnsetType:
        if not self._options.return_token_ids:
            return UNSET
        return run.submission.prompt_token_ids.tolist()

    def _prompt_logprobs(self, run: PromptRun) -> PromptLogprobs | UnsetType:
        if not self._shows_prompt_logprobs:
            return UNSET
        return prompt_logprobs(run, self._model.tokenizer)

    def _run_of(self, delta: Delta) -> PromptRun:
        return self._generation.runs[delta.index // self._request.n]

    def _shape(self, choices: list[CompletionChoice], usage: OptionalUsage) -> CompletionAnswer:
        return CompletionAnswer(
            self._request.request_id, self._created, self._model.name, choices, usage
        )
