"""One generation over as many tries as it takes, without I/O.

A stream may break: the scheduler restarts, the network drops. Whatever it had delivered is kept
here, choice by choice, and goes into the next try as `prior_output`, with the seed of the first
message: then the server goes on at the next token, and the one who reads the chunks sees a pause.

    try 1    Started  Delta(0: a b)  Delta(0: c)   UNAVAILABLE
    try 2    prior_output(0: a b c)  seed          Delta(0: d e)  Finished  Usage
    chunks   Started  Delta(0: a b)  Delta(0: c)   Delta(0: d e)  Finished  Usage

Rule 1: no token is handed out twice. Rule 2: a generation that may have begun is never silently
begun anew with another seed. Both clients drive this class; it knows neither clock nor channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from common.errors import (
    InvalidRequestError,
    OctavoError,
    QueueFullError,
    ServerError,
    UnavailableError,
)
from octavo.retries import RetryPolicy
from octavo.types import Chunk, Delta, Finished, Started, Usage
from octavo.wire import read_chunks, read_started
from proto import inference_pb2 as pb


@dataclass(slots=True, eq=False)
class _Choice:
    token_ids: list[int] = field(default_factory=list)
    has_delta: bool = False
    finished: Finished | None = None


class ResumableGeneration:
    """Tells what to send, what to hand out and whether to try again.

    For each try: `next_request`, then `receive` for every message, then `ended` or `interrupted`,
    until `complete`.
    """

    def __init__(self, request: pb.GenerateRequest, retries: RetryPolicy) -> None:
        self._request = request
        self._retries = retries
        self._started: Started | None = None
        self._choices = [_Choice() for _ in range(max(1, request.n))]
        self._usage: Usage | None = None
        self._failures = 0
        self._interrupted = False

    @property
    def complete(self) -> bool:
        return self._usage is not None

    def next_request(self) -> pb.GenerateRequest:
        """The message of the next try: the first one, plus what was delivered since."""
        request = pb.GenerateRequest()
        request.CopyFrom(self._request)
        if self._started is None:
            return request
        # By the same name, so that the caller may still abort it.
        request.request_id = self._started.request_id
        request.sampling.seed = self._started.seed
        if any(choice.has_delta for choice in self._choices):
            request.echo_prompt = False  # the prompt's text came with the first delta
        for index, choice in enumerate(self._choices):
            if choice.token_ids or choice.finished:
                request.prior_output.add(
                    index=index,
                    token_ids=choice.token_ids,
                    finished=choice.finished is not None,
                )
        return request

    def receive(self, reply: pb.GenerateReply) -> Iterator[Chunk]:
        """The chunks that a message adds. ServerError when it contradicts what came before."""
        if reply.HasField("started"):
            yield from self._receive_started(read_started(reply))
        elif self._started is None:
            raise ServerError("the server's first message does not say what it started")
        for chunk in read_chunks(reply):
            if isinstance(chunk, Delta):
                choice = self._open_choice(chunk.index)
                choice.token_ids.extend(chunk.token_ids)
                choice.has_delta = True
                self._failures = 0
            elif isinstance(chunk, Finished):
                self._open_choice(chunk.index).finished = chunk
            elif isinstance(chunk, Usage):
                self._usage = chunk
            yield chunk

    def ended(self) -> Iterator[Chunk]:
        """The server closed the stream without an error."""
        if self.complete:
            return
        if not self._all_finished():
            raise ServerError("the server closed the stream before every choice had ended")
        yield self._own_usage()

    def interrupted(self, error: OctavoError) -> float | None:
        """The stream broke. Returns the pause before the next try in seconds.

        None: every choice had ended, so nothing is left to ask for; call `ended`. Raises `error`
        if it is none that another try could mend, or if too many tries in a row brought nothing.
        """
        if self._all_finished():
            return None
        if not self._may_pass(error):
            raise error
        self._interrupted = True
        self._failures += 1
        if self._failures >= self._max_failures:
            raise error
        delay = self._retries.delay_s(self._failures)
        return max(delay, error.retry_after_s) if isinstance(error, QueueFullError) else delay

    @property
    def _max_failures(self) -> int:
        return self._retries.max_resumes if self._started else self._retries.max_tries

    def _may_pass(self, error: OctavoError) -> bool:
        if isinstance(error, UnavailableError):
            return True
        if not self._interrupted:
            return False
        # On a later try the server may still hold the broken one under the same name, and after a
        # restart everyone comes back at once. Neither is a reason to drop what was delivered.
        duplicate = isinstance(error, InvalidRequestError) and error.field == "request_id"
        return duplicate or isinstance(error, QueueFullError)

    def _receive_started(self, started: Started) -> Iterator[Chunk]:
        if self._started is None:
            self._started = started
            yield started
        elif started.seed != self._started.seed:
            raise ServerError("the server resumed with another seed than it was sent")

    def _open_choice(self, index: int) -> _Choice:
        if index >= len(self._choices):
            raise ServerError(f"the server sent choice {index} of {len(self._choices)}")
        choice = self._choices[index]
        if choice.finished:
            raise ServerError(f"the server sent more of choice {index} after its end")
        return choice

    def _all_finished(self) -> bool:
        return all(choice.finished for choice in self._choices)

    def _own_usage(self) -> Usage:
        """What the server would have said, had the stream lived to its last message."""
        assert self._started is not None, "a choice cannot end before the request started"
        ends = [choice.finished for choice in self._choices if choice.finished]
        self._usage = Usage(
            num_prompt_tokens=self._started.num_prompt_tokens,
            num_output_tokens=sum(end.num_output_tokens for end in ends),
            num_cached_tokens=self._started.num_cached_tokens,
        )
        return self._usage
