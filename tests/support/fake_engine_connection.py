"""An engine connection without an engine: scripted tokens, and a record of what was asked.

It keeps the loop's promises: admitted, then tokens, then one finished per choice; ends by EOS, stop
tokens and max_tokens; a finish or an abort of a live request ends it, of another does nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from common.plan import TOKEN_TYPECODE, TokenLogprobs
from scheduler_service.engine.messages import (
    Admitted,
    Finished,
    ModelReady,
    Readiness,
    Refused,
    ServerInfo,
    Submit,
)
from scheduler_service.engine.streams import RequestStream

Answers = Callable[[Submit, int], Sequence[int]]
"""The tokens of one choice, at most those that max_tokens allows."""


class FakeEngineConnection:
    def __init__(
        self,
        model: ModelReady,
        answers: Answers,
        *,
        tokens_per_update: int = 1,
        num_overrun: int = 0,
        num_cached_tokens: int = 0,
    ) -> None:
        """`num_overrun`: tokens that still come after a stop string was reported."""
        self._model = model
        self._answers = answers
        self._tokens_per_update = tokens_per_update
        self._num_overrun = num_overrun
        self._num_cached_tokens = num_cached_tokens
        self._handles = itertools.count(1)
        self._live: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._readiness_news = asyncio.Event()
        self.readiness = Readiness(True)
        self.refusal: Callable[[Submit], Refused] | None = None
        """Set: every request is refused with it."""
        self.may_admit = asyncio.Event()
        self.may_admit.set()
        self.may_step = asyncio.Event()
        self.may_step.set()
        self.error_at: int | None = None
        """Every choice fails at so many outputs."""
        self.expires_at: int | None = None
        self.submits: list[Submit] = []
        self.aborts: list[str] = []
        """Request ids; those of live requests only."""
        self.useless_aborts: list[str] = []
        self.finishes: list[tuple[int, int, int]] = []
        self.calls: list[str] = []

    @property
    def num_live(self) -> int:
        return len(self._live)

    async def model(self) -> ModelReady:
        return self._model

    async def readiness_changed(self) -> Readiness:
        await self._readiness_news.wait()
        return self.readiness

    def set_readiness(self, readiness: Readiness) -> None:
        self.readiness = readiness
        news, self._readiness_news = self._readiness_news, asyncio.Event()
        news.set()

    def next_handle(self) -> int:
        return next(self._handles)

    def submit(self, submit: Submit, stream: RequestStream) -> None:
        self.submits.append(submit)
        if self.refusal is not None:
            stream.push_refused(self.refusal(submit))
            return
        run = self._live[submit.request_id] = _Run(self, submit, stream)
        task = asyncio.create_task(run.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def finish(self, handle: int, choice: int, num_output_tokens: int) -> None:
        self.finishes.append((handle, choice, num_output_tokens))
        for run in self._live.values():
            if run.submit.handle == handle:
                run.stop_at(choice, num_output_tokens)

    def abort(self, request_id: str) -> None:
        run = self._live.pop(request_id, None)
        if run is None:
            self.useless_aborts.append(request_id)
        else:
            self.aborts.append(request_id)
            run.abort()

    async def abort_by_id(self, request_id: str) -> bool:
        found = request_id in self._live
        self.abort(request_id)
        return found

    async def call(self, method: str) -> object:
        self.calls.append(method)
        if method == "metrics":
            return "# TYPE octavo_up gauge\noctavo_up 1\n"
        if method == "server_info":
            return ServerInfo(True, 1, len(self._live), 0, 600, 590, 8, 64)
        return True

    def lose(self, reason: str) -> None:
        """The step loop is gone."""
        live, self._live = self._live, {}
        for run in live.values():
            run.is_over = True
            run.stream.push_lost(reason)

    def ended(self, request_id: str) -> None:
        self._live.pop(request_id, None)


class _Run:
    """One request, one token per choice and step."""

    def __init__(
        self, connection: FakeEngineConnection, submit: Submit, stream: RequestStream
    ) -> None:
        self.submit = submit
        self.stream = stream
        self.is_over = False
        self._connection = connection
        prior = {index: list(array(TOKEN_TYPECODE, ids)) for index, ids in submit.prior_outputs}
        self.outputs = prior or {index: [] for index in range(submit.n)}
        self._running = set(self.outputs)
        self._overrun: dict[int, int] = {}

    async def run(self) -> None:
        connection = self._connection
        await connection.may_admit.wait()
        if self.is_over:
            return
        self.stream.push_admitted(Admitted(self.submit.handle, connection._num_cached_tokens))
        self._push_prompt_logprobs()
        answers = {i: list(connection._answers(self.submit, i)) for i in self.outputs}
        while self._running and not self.is_over:
            await connection.may_step.wait()
            for _ in range(connection._tokens_per_update):
                for index in sorted(self._running):
                    self._step(index, answers[index])
            await asyncio.sleep(0)
        if not self.is_over:
            connection.ended(self.submit.request_id)

    def stop_at(self, index: int, num_output_tokens: int) -> None:
        if index not in self._running:
            return
        if self._connection._num_overrun:
            self._overrun[index] = self._connection._num_overrun
            self._connection._num_overrun = 0
            return
        self._finish(index, "stop", num_output_tokens)

    def abort(self) -> None:
        self.is_over = True
        for index in sorted(self._running):
            self._finish(index, "abort")

    def _step(self, index: int, answer: list[int]) -> None:
        if self.is_over or index not in self._running:
            return
        outputs = self.outputs[index]
        if self._connection.expires_at == len(outputs):
            self._finish(index, "expired")
        elif self._connection.error_at == len(outputs):
            self._finish(index, "error", message="the executor said no")
        elif len(outputs) >= len(answer):
            self._finish(index, "length")
        else:
            self._emit(index, answer[len(outputs)])

    def _emit(self, index: int, token: int) -> None:
        outputs, submit = self.outputs[index], self.submit
        outputs.append(token)
        self.stream.push_token(index, token, _logprobs(token, submit.params.num_logprobs))
        is_masked = len(outputs) <= submit.params.min_tokens
        if token in submit.eos_token_ids and not is_masked:
            self._finish(index, "stop")
        elif token in submit.stop_token_ids and not is_masked:
            self._finish(index, "stop", stop_token_id=token)
        elif len(outputs) == submit.max_tokens:
            self._finish(index, "length")
        elif index in self._overrun:
            self._overrun[index] -= 1
            if not self._overrun[index]:
                self._finish(index, "stop")

    def _finish(
        self, index: int, reason: Any, num_output_tokens: int | None = None, **more: Any
    ) -> None:
        self._running.discard(index)
        count = len(self.outputs[index]) if num_output_tokens is None else num_output_tokens
        self.stream.push_finished(Finished(self.submit.handle, index, reason, count, **more))

    def _push_prompt_logprobs(self) -> None:
        asked = self.submit.params.num_prompt_logprobs
        if asked is None:
            return
        prompt = array(TOKEN_TYPECODE, self.submit.prompt_token_ids)
        entries = [_logprobs(token, asked) for token in prompt[1:]]
        self.stream.push_prompt_logprobs(1, [entry for entry in entries if entry is not None])


def _logprobs(token: int, asked: int | None) -> TokenLogprobs | None:
    """The sampled token is the worst of all and not among the best."""
    if asked is None:
        return None
    best = tuple(other for other in range(100, 100 + asked + 1) if other != token)[:asked]
    values = tuple(-0.5 - 0.25 * i for i in range(len(best)))
    return TokenLogprobs(asked + 1, (token, *best), (-9.0, *values))
