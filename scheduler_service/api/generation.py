"""One client's generation while it runs: from the loop's updates to deltas.

Each prompt has a pump, a task that takes the loop's updates as they come, whatever the client's
transport does. So stop strings are acted on at once, and a client that reads slowly costs memory
for its own text alone: what it has not taken yet is merged in its choices.

Rule 1: a request is aborted at most once, and only if it is still live in the loop. Rule 2: `close`
is called whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from common.errors import (
    DeadlineError,
    InvalidRequestError,
    OctavoError,
    QueueFullError,
    UnavailableError,
)
from common.plan import TokenLogprobs
from scheduler_service.api.choice import Choice, Delta
from scheduler_service.api.prompt_run import PromptRun
from scheduler_service.api.submission import Submission
from scheduler_service.api.tokenizer import Tokenizer
from scheduler_service.engine.connection import EngineConnection
from scheduler_service.engine.messages import Finished, Refused
from scheduler_service.engine.streams import RequestStream, RequestUpdate

log = logging.getLogger(__name__)


class Generation:
    """Runs submissions of one request. `start`, then `next` until it returns None, or `collect`."""

    def __init__(
        self,
        connection: EngineConnection,
        tokenizer: Tokenizer,
        submissions: Sequence[Submission],
    ) -> None:
        self._connection = connection
        self._tokenizer = tokenizer
        n = submissions[0].request.n
        self.runs = [
            PromptRun(submission, i * n, tokenizer) for i, submission in enumerate(submissions)
        ]
        self._live: dict[PromptRun, asyncio.Task[None]] = {}
        """Runs that the loop knows and has not ended."""
        self._changed: dict[int, Choice] = {}
        """Choices with news for the transport, by index."""
        self._num_unfinished = len(self.runs)
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._error: OctavoError | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(run.submission.prompt_token_ids) for run in self.runs)

    @property
    def num_cached_tokens(self) -> int:
        return sum(run.num_cached_tokens for run in self.runs)

    @property
    def num_output_tokens(self) -> int:
        """Over all choices, so far."""
        return sum(choice.num_output_tokens for run in self.runs for choice in run.choices)

    def prompt_text(self, run: PromptRun) -> str:
        """The prompt as it was sent or, for token ids, as the tokenizer reads them."""
        submission = run.submission
        if submission.prompt_text is not None:
            return submission.prompt_text
        return self._tokenizer.decode(
            submission.prompt_token_ids,
            skip_special_tokens=submission.request.skip_special_tokens,
        )

    def start(self) -> None:
        for run in self.runs:
            self._start(run)

    async def next(self) -> list[Delta] | None:
        """News since the last call, at most one delta per choice, in order; waits for some.

        May be empty: the first prompt was admitted. None: every choice has ended and was told.
        Raises what ended the request before its choices did, after their last news.
        """
        while not self._news.is_set():
            if self._ended.is_set():
                if self._error is not None:
                    raise self._error
                return None
            await self._news.wait()
        self._news.clear()
        return self._take()

    async def collect(self) -> list[Delta]:
        """Waits for the end; one delta per choice holds all of it."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._take()

    def fail(self, error: OctavoError) -> None:
        """Ends the whole request; the first error is the one that is told."""
        if not self._ended.is_set():
            self._error = error
            self._end()
        self.close()

    def close(self) -> None:
        """Aborts what is still live. Idempotent; nothing may be read afterwards."""
        live, self._live = self._live, {}
        for run, pump in live.items():
            pump.cancel()
            self._connection.abort(run.submission.request_id)

    def _start(self, run: PromptRun) -> None:
        prior_outputs = run.start_over()
        if run.submission.runs and run.running:
            run.handle = self._connection.next_handle()
            submit = run.submission.to_submit(run.handle, prior_outputs)
            stream = RequestStream()
            self._connection.submit(submit, stream)
            self._live[run] = asyncio.create_task(self._pump(run, stream))
            _log_start(run)
        else:
            for j in run.running:
                run.choices[j].finish_as_is("length")
            self._finish(run)
        self._note(run, (j for j, choice in enumerate(run.choices) if choice.end is not None))

    async def _pump(self, run: PromptRun, stream: RequestStream) -> None:
        try:
            while run in self._live:
                self._apply(run, await stream.next())
        except OctavoError as error:
            self._live.pop(run, None)
            self.fail(error)
        except Exception:
            log.exception("a generation failed", extra={"id": run.submission.request_id})
            self.fail(OctavoError("internal error"))

    def _apply(self, run: PromptRun, update: RequestUpdate) -> None:
        if update.admitted is not None:
            run.num_cached_tokens = update.admitted.num_cached_tokens
        for first_position, entries in update.prompt_logprobs:
            run.add_prompt_logprobs(first_position, entries)
        if run.submission.max_tokens != 0:
            for j, token_ids in update.tokens.items():
                self._push(run, j, token_ids, update.logprobs.get(j))
        self._note(run, update.tokens)
        self._news.set()
        for finished in update.finished:
            self._end_choice(run, finished)
        if update.refused is not None:
            raise _error_of(update.refused)
        if update.lost is not None:
            raise UnavailableError(update.lost)
        if not run.running:
            self._finish(run)

    def _end_choice(self, run: PromptRun, finished: Finished) -> None:
        if finished.reason == "expired":
            raise DeadlineError("the deadline passed before the request ended")
        choice = run.choices[finished.index]
        if run.submission.max_tokens == 0 and finished.reason in ("stop", "length"):
            choice.finish_as_is("length")
        else:
            choice.finish(finished)
        run.running.discard(finished.index)
        self._note(run, (finished.index,))

    def _push(
        self,
        run: PromptRun,
        j: int,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None,
    ) -> None:
        choice = run.choices[j]
        if choice.end is not None:
            return
        for i, token_id in enumerate(token_ids):
            choice.push(token_id, logprobs[i] if logprobs else None)
        if choice.end is not None:
            self._connection.finish(run.handle, j, choice.num_output_tokens)
            run.running.discard(j)

    def _note(self, run: PromptRun, changed: Iterable[int]) -> None:
        for j in changed:
            self._changed[run.first_index + j] = run.choices[j]

    def _take(self) -> list[Delta]:
        changed, self._changed = self._changed, {}
        return [changed[index].take() for index in sorted(changed)]

    def _finish(self, run: PromptRun) -> None:
        """All its choices have ended; the loop needs no abort for it."""
        self._live.pop(run, None)
        self._num_unfinished -= 1
        if not self._num_unfinished:
            self._end()

    def _end(self) -> None:
        self._ended.set()
        self._news.set()


def _error_of(refused: Refused) -> OctavoError:
    match refused.kind:
        case "invalid":
            return InvalidRequestError(refused.message, field=refused.field or None)
        case "queue_full":
            return QueueFullError(refused.message, retry_after_s=refused.retry_after_s)
        case "unavailable":
            return UnavailableError(refused.message)


def _log_start(run: PromptRun) -> None:
    submission = run.submission
    log.info(
        "request submitted",
        extra={
            "id": submission.request_id,
            "prompt_tokens": len(submission.prompt_token_ids),
            "n": submission.request.n,
            "seed": submission.params.seed,
        },
    )
