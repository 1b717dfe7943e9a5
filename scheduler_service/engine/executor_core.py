"""The core that plans for one executor, while that executor's pool comes, goes and comes back.

same incarnation and epoch    the pool is as we left it: only the steps in flight are void
anything else                 the pool is empty or was another's: every sequence waits again
"""

from __future__ import annotations

from typing import NamedTuple

from common.step_time import StepTime
from scheduler_service.core.counters import Counters, LiveKV
from scheduler_service.core.events import Events, SequenceKey
from scheduler_service.core.request import FinishReason, PriorOutput, RefusedError, Request
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.core.step_budget import StepCosts
from scheduler_service.engine.executor_client import ExecutorInfo
from scheduler_service.engine.served_model import ServedModel

Outputs = tuple[PriorOutput, ...]


class Unplaced(NamedTuple):
    """A request that its core, being smaller now, cannot take any more."""

    request: Request
    outputs: Outputs
    message: str


class ExecutorCore:
    """Empty until the executor was reached for the first time."""

    def __init__(self, served: ServedModel) -> None:
        self.scheduler: Scheduler | None = None
        self.info: ExecutorInfo | None = None
        """What the executor said last."""
        self._served = served
        self._is_distrusted = False
        self._left_events: list[Events] = []
        self._unplaced: list[Unplaced] = []

    def attach(self, info: ExecutorInfo) -> None:
        """A new stream is about to open: brings the core to the state of the executor's pool."""
        known, self.info = self.info, info
        if self.scheduler is None or known is None:
            self.scheduler = self._served.new_core(info)
        elif known == info and not self._is_distrusted:
            self.scheduler.void_steps()
        elif self._served.limits(known) == self._served.limits(info):
            self.scheduler.reset()
        else:
            self._replace(self.scheduler, info)
        self._is_distrusted = False

    def distrust(self) -> None:
        """Core and executor may disagree: the next stream begins with an empty pool."""
        self._is_distrusted = True

    def _replace(self, old: Scheduler, info: ExecutorInfo) -> None:
        """The executor came back with another pool: the sequences move to a core of that size."""
        moved = _take_all(old)
        self._left_events.append(old.take_events())
        self.scheduler = self._served.new_core(info)
        for request, outputs in moved:
            try:
                self.scheduler.add(request, outputs)
            except RefusedError as error:
                self._unplaced.append(Unplaced(request, outputs, str(error)))

    @property
    def counters(self) -> Counters | None:
        return self.scheduler.counters if self.scheduler is not None else None

    @property
    def live_kv(self) -> LiveKV:
        return self.scheduler.live_kv if self.scheduler is not None else LiveKV(0, 0)

    @property
    def num_sequences(self) -> int:
        """Running and waiting."""
        return len(self.scheduler.state.sequences) if self.scheduler is not None else 0

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.state.waiting) if self.scheduler is not None else 0

    @property
    def next_deadline(self) -> float | None:
        return self.scheduler.next_deadline if self.scheduler is not None else None

    def expect(self, step_time: StepTime | None) -> None:
        """What steps take from now on, as far as is known."""
        if self.scheduler is not None and step_time is not None:
            self.scheduler.expect(StepCosts(*step_time))

    def match_length(self, request: Request) -> int:
        return self.scheduler.match_length(request) if self.scheduler is not None else 0

    def add(self, request: Request, outputs: Outputs) -> None:
        """RefusedError if it can never run here. Only once the executor was reached."""
        assert self.scheduler is not None
        self.scheduler.add(request, outputs)

    def abort(self, request_id: str) -> None:
        if self.scheduler is not None:
            self.scheduler.abort(request_id)

    def finish(self, key: SequenceKey, num_output_tokens: int) -> None:
        """A stop was found in its text. Nothing happens if it has ended or is elsewhere."""
        if self.scheduler is not None:
            sequence_id = self.scheduler.sequence_id_of(key)
            if sequence_id is not None:
                self.scheduler.finish(sequence_id, num_output_tokens, FinishReason.STOP)

    def expire(self, now: float) -> None:
        if self.scheduler is not None:
            self.scheduler.expire(now)

    def take_all(self) -> list[tuple[Request, Outputs]]:
        """Everything unfinished, for other cores. Only while the executor cannot be reached."""
        return _take_all(self.scheduler) if self.scheduler is not None else []

    def take_events(self) -> list[Events]:
        events, self._left_events = self._left_events, []
        if self.scheduler is not None:
            events.append(self.scheduler.take_events())
        return events

    def take_unplaced(self) -> list[Unplaced]:
        """To be told after the events."""
        unplaced, self._unplaced = self._unplaced, []
        return unplaced


def _take_all(scheduler: Scheduler) -> list[tuple[Request, Outputs]]:
    scheduler.reset()
    return scheduler.take_waiting(len(scheduler.state.sequences))
