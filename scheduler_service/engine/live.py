"""The requests that live in the loop: who asked, what was delivered, when.

It turns the cores' events into outbox entries and takes the times in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_service.core.events import Events, SequenceAdmitted, SequenceFinished, SequenceKey
from scheduler_service.core.request import FinishReason, PriorOutput, Request
from scheduler_service.engine.messages import Admitted, Finished, Submit
from scheduler_service.engine.metrics import RequestMetrics
from scheduler_service.engine.outbox import Outbox
from scheduler_service.engine.server import WorkerLink


@dataclass(slots=True, eq=False)
class LiveRequest:
    worker: WorkerLink
    handle: int
    choices_left: set[int]
    num_prompt_tokens: int
    arrived_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None


@dataclass(slots=True, eq=False)
class LiveChoice:
    """What the loop touches per token."""

    outbox: Outbox
    handle: int
    index: int
    last_token_at: float


class LiveRequests:
    """Every request from its acceptance to its last `finished`. Times are on the loop's clock."""

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics
        self._requests: dict[str, LiveRequest] = {}
        self._choices: dict[SequenceKey, LiveChoice] = {}
        self._ids: dict[tuple[WorkerLink, int], str] = {}
        self.last_token_at = 0.0
        """Of any request."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def ids(self) -> list[str]:
        return list(self._requests)

    def ids_of(self, worker: WorkerLink) -> list[str]:
        return [id for id, request in self._requests.items() if request.worker is worker]

    def id_of(self, worker: WorkerLink, handle: int) -> str | None:
        """The live request that `worker` calls `handle`."""
        return self._ids.get((worker, handle))

    def add(self, worker: WorkerLink, submit: Submit, request: Request, now: float) -> None:
        """A core has accepted it."""
        choices = {index for index, _ in submit.prior_outputs} or set(range(submit.n))
        self._ids[worker, submit.handle] = request.request_id
        self._requests[request.request_id] = LiveRequest(
            worker=worker,
            handle=submit.handle,
            choices_left=choices,
            num_prompt_tokens=len(request.prompt_token_ids),
            arrived_at=now,
        )

    def publish(self, events: Events, now: float) -> None:
        """Puts everything the core told into the outboxes of the workers it concerns."""
        for admitted in events.admitted:
            self._publish_admitted(admitted, now)
        for key, entry in events.prompt_logprobs:
            request = self._requests[key.request_id]
            request.worker.outbox.put_prompt_logprobs(request.handle, entry)
        if events.keys:
            self._publish_tokens(events, now)
        for finished in events.finished:
            self._publish_finished(finished, now)

    def _publish_admitted(self, admitted: SequenceAdmitted, now: float) -> None:
        request = self._requests[admitted.key.request_id]
        request.worker.outbox.put_admitted(Admitted(request.handle, admitted.num_cached_tokens))
        if request.admitted_at is None:
            request.admitted_at = now
            self._metrics.num_prompt_tokens += request.num_prompt_tokens
            self._metrics.queue_time_s.observe(now - request.arrived_at)

    def _publish_tokens(self, events: Events, now: float) -> None:
        num_open = len(self._choices)
        choices = [self._choices.get(key) or self._open_choice(key, now) for key in events.keys]
        gaps = Counter([choice.last_token_at for choice in choices])
        gaps[now] -= len(self._choices) - num_open  # a first token has none before it
        for last_token_at, count in gaps.items():
            # Most had their last token in one step: a single observation for all of them.
            self._metrics.inter_token_s.observe(now - last_token_at, count)
        for choice in choices:
            choice.last_token_at = now
        if len({choice.outbox for choice in choices}) == 1 and not events.logprobs:
            choices[0].outbox.put_tokens(
                [choice.handle for choice in choices],
                [choice.index for choice in choices],
                events.tokens,
            )
        else:
            _put_one_by_one(choices, events)
        self._metrics.num_generation_tokens += len(choices)
        self.last_token_at = now

    def _open_choice(self, key: SequenceKey, now: float) -> LiveChoice:
        request = self._requests[key.request_id]
        if request.first_token_at is None:
            request.first_token_at = now
            self._metrics.first_token_s.observe(now - request.arrived_at)
        choice = LiveChoice(request.worker.outbox, request.handle, key.choice, now)
        self._choices[key] = choice
        return choice

    def _publish_finished(self, finished: SequenceFinished, now: float) -> None:
        request_id, index = finished.key
        request = self._requests[request_id]
        request.worker.outbox.put_finished(
            Finished(
                handle=request.handle,
                index=index,
                reason=finished.reason.value,
                num_output_tokens=finished.num_output_tokens,
                stop_token_id=finished.stop_token_id,
                message=finished.message,
            )
        )
        self._choices.pop(finished.key, None)
        self._metrics.observe_finished(finished, now - request.arrived_at)
        self._drop_choice(request_id, request, index)

    def _end_choice(
        self,
        request_id: str,
        request: LiveRequest,
        index: int,
        reason: FinishReason,
        num_output_tokens: int,
        message: str,
    ) -> None:
        """Of a choice that no core has."""
        self._metrics.num_finished[reason.value] += 1
        self._choices.pop(SequenceKey(request_id, index), None)
        request.worker.outbox.put_finished(
            Finished(request.handle, index, reason.value, num_output_tokens, message=message)
        )
        self._drop_choice(request_id, request, index)

    def _drop_choice(self, request_id: str, request: LiveRequest, index: int) -> None:
        request.choices_left.discard(index)
        if not request.choices_left:
            del self._requests[request_id], self._ids[request.worker, request.handle]

    def fail(self, request: Request, outputs: Sequence[PriorOutput], message: str) -> None:
        """Ends what is left of a request that no core holds any more."""
        live = self._requests[request.request_id]
        lengths = {output.index: len(output.token_ids) for output in outputs}
        for index, length in (lengths or dict.fromkeys(range(request.n), 0)).items():
            self._end_choice(request.request_id, live, index, FinishReason.ERROR, length, message)


def _put_one_by_one(choices: list[LiveChoice], events: Events) -> None:
    for position, (choice, token) in enumerate(zip(choices, events.tokens, strict=True)):
        choice.outbox.put_token(choice.handle, choice.index, token)
        if entry := events.logprobs.get(position):
            choice.outbox.put_logprobs(entry)
