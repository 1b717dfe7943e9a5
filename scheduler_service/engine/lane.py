"""One executor: its connection, its core, and the steps between the two.

A lane keeps a step stream open for as long as its executor can be reached: claim it, learn its
model, bring core and executor to one state, stream until something breaks, begin again. What a
broken stream had in flight is void; results that arrived stay confirmed; clients see a pause.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from typing import Protocol

from common.errors import ExecutorLostError, ModelError, OwnershipError, ResyncError
from common.plan import ErrorCode, StepPlan, StepResult
from common.step_time import StepTimeModel
from scheduler_service.core.request import Request
from scheduler_service.engine.backoff import Backoff
from scheduler_service.engine.executor_client import ExecutorClient, ExecutorInfo, StepStream
from scheduler_service.engine.executor_core import ExecutorCore, Outputs
from scheduler_service.engine.metrics import LaneMetrics
from scheduler_service.engine.plan_dump import dump
from scheduler_service.engine.served_model import ServedModel
from scheduler_service.engine.step_clock import StepClock

log = logging.getLogger(__name__)

FAULT_WINDOW_S = 60.0
"""Two invalid plans within it, and the executor is left alone for as long."""
MAX_OVERRUNS = 2
"""Streams in a row that the watchdog ended: the executor greets us, but its device hangs."""
AWAITED_S = 0.3
"""The longest pause while an executor was never reached: it is loading, and all wait for it."""
STABLE_S = 5.0
"""A stream that lasted so long is reopened at once, however idle it was."""


class LaneState(enum.Enum):
    CONNECTING = "connecting"
    """Never reached so far."""
    READY = "ready"
    INTERRUPTED = "interrupted"
    """The stream broke a moment ago. Requests are still taken."""
    LOST = "lost"
    """It broke and could not be opened again so far."""
    FAULTY = "faulty"
    """The executor found our plans invalid, twice within a minute."""


class LaneHost(Protocol):
    """What a lane needs of the loop it belongs to."""

    def now(self) -> float: ...

    def wake(self) -> None:
        """Has the loop take a turn soon."""


class ExecutorLane:
    """`run` is a task; every other method is a synchronous part of the loop's turn."""

    def __init__(self, client: ExecutorClient, served: ServedModel, host: LaneHost) -> None:
        self.address = client.address
        self.state = LaneState.CONNECTING
        self.core = ExecutorCore(served)
        self.metrics = LaneMetrics()
        self._client = client
        self._served = served
        self._host = host
        self._epoch = 0
        self._stream: StepStream | None = None
        self._results: deque[tuple[float, StepResult]] = deque()
        self._plans: dict[int, StepPlan] = {}
        """In flight, by step id."""
        self._clock = StepClock()
        self._step_time = StepTimeModel()
        self._backoff = Backoff()
        self._opened_at: float | None = None
        self._faults: deque[float] = deque(maxlen=2)
        self.is_stranded = False
        """Lost with sequences that were not offered to other lanes yet."""
        self._last_complaint = ""

    @property
    def accepts_requests(self) -> bool:
        return self.state in (LaneState.READY, LaneState.INTERRUPTED)

    async def run(self) -> None:
        """Holds a session whenever the executor can be reached. Never returns."""
        while True:
            try:
                await self._session()
            except (ExecutorLostError, ResyncError, OwnershipError, ModelError) as error:
                self._session_ended(error)
            await asyncio.sleep(self._pause_s())

    async def _session(self) -> None:
        info = await self._claim()
        self._served.accept(self.address, info, await self._client.get_model(info))
        self._attach(info)
        stream = self._stream = self._client.open_stream(info)
        self._opened_at = self._host.now()
        self.state = LaneState.READY
        self._last_complaint = ""
        log.info(
            "executor attached",
            extra={"executor": self.address, "epoch": info.epoch, "blocks": info.num_blocks},
        )
        self._host.wake()
        try:
            async for result in stream.results():
                self._results.append((self._host.now(), result))
                self._host.wake()
        finally:
            self._stream = None
            stream.cancel()

    async def _claim(self) -> ExecutorInfo:
        try:
            info = await self._client.hello(self._epoch)
        except OwnershipError:
            self._epoch = 0
            raise
        self._epoch = info.epoch
        return info

    def _attach(self, info: ExecutorInfo) -> None:
        self._take_results(self._host.now())
        known = self.core.info
        self.core.attach(info)
        self.is_stranded = False
        if known is None:
            return
        self.metrics.num_reconnects += 1
        if known.incarnation != info.incarnation:
            self._clock.restarted()
            self._step_time = StepTimeModel()

    def _session_ended(self, error: Exception) -> None:
        now = self._host.now()
        self._clock.stream_ended()
        self._plans.clear()
        opened_at, self._opened_at = self._opened_at, None
        if opened_at is not None and now - opened_at >= STABLE_S:
            self._backoff.reset()
        if len(self._faults) == 2 and now - self._faults[0] < FAULT_WINDOW_S:
            self.state = LaneState.FAULTY
            self.is_stranded = True
        elif opened_at is not None and self._clock.num_overruns < MAX_OVERRUNS:
            self.state = LaneState.INTERRUPTED
        elif self.state is not LaneState.CONNECTING:
            self.is_stranded = self.is_stranded or self.state is not LaneState.LOST
            self.state = LaneState.LOST
        if str(error) != self._last_complaint:
            self._last_complaint = str(error)
            # One that was never there may still be loading; at start that is no news.
            is_awaited = self.state is LaneState.CONNECTING and isinstance(error, ExecutorLostError)
            level = logging.INFO if is_awaited else logging.WARNING
            log.log(level, "no executor at %s: %s", self.address, error)
        self._host.wake()

    def _pause_s(self) -> float:
        if self.state is LaneState.FAULTY:
            log.error("executor %s left alone for %.0f s", self.address, FAULT_WINDOW_S)
            self._faults.clear()
            return FAULT_WINDOW_S
        pause_s = self._backoff.next_s()
        return min(pause_s, AWAITED_S) if self.state is LaneState.CONNECTING else pause_s

    def apply(self, now: float) -> None:
        """Gives the core the results that arrived, and gives up an executor that is overdue."""
        self._take_results(now)
        deadline = self._clock.deadline
        if self._stream is not None and deadline is not None and now >= deadline:
            log.error("a step is overdue; reopening the stream", extra={"executor": self.address})
            self.metrics.num_overdue_steps += 1
            self._clock.overran()
            self._break_stream()

    def _take_results(self, now: float) -> None:
        while self._results:
            arrived_at, result = self._results.popleft()
            round_trip_s = self._clock.answered(result.step_id, arrived_at)
            plan = self._plans.pop(result.step_id, None)
            if not self._confirm(result):
                self._start_over(plan, result, now)
                continue
            if round_trip_s is not None:
                self._backoff.reset()
                self.metrics.observe_result(result, round_trip_s)
                self.metrics.observe_live_kv(self.core.live_kv)
                self._learn(plan, result)
            if any(error.code is ErrorCode.INVALID_PLAN for error in result.errors):
                self._start_over(plan, result, now)

    def _learn(self, plan: StepPlan | None, result: StepResult) -> None:
        """What steps cost here, for those to come."""
        if plan is None or not plan.num_tokens:
            return
        timings = result.timings
        took_s = (timings.prepare_ns + timings.forward_ns + timings.sample_ns) / 1e9
        decodes = plan.num_decodes, plan.num_attended_by_decodes
        if self._step_time.observe(plan.num_tokens, plan.num_attended, took_s, decodes):
            self.core.expect(self._step_time.fitted)

    def _confirm(self, result: StepResult) -> bool:
        """Whether the result fits its plan."""
        assert self.core.scheduler is not None
        try:
            self.core.scheduler.apply(result)
        except ValueError as error:
            log.error("a result does not fit its plan: %s", error)
            return False
        return True

    def _start_over(self, plan: StepPlan | None, result: StepResult, now: float) -> None:
        """A bug of ours or of the executor. The two may disagree about more than what showed: the
        stream is opened again with an empty pool."""
        named = {error.sequence_id for error in result.errors}
        log.error(
            "plan and executor %s do not fit; starting over",
            self.address,
            extra={
                "errors": [f"{error.sequence_id}: {error.message}" for error in result.errors],
                "plan": dump(plan, named) if plan is not None else None,
                "core": repr(self.core.counters),
            },
        )
        if self._stream is not None:  # else what came behind the fault that closed it
            self._faults.append(now)
        self.metrics.num_invalid_plans += 1
        self.core.distrust()
        self._break_stream()

    def _break_stream(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    def plan(self, now: float) -> None:
        """Sends as many steps as may be in flight."""
        if self._stream is None or self.core.scheduler is None:
            return
        while (plan := self.core.scheduler.schedule()) is not None:
            num_bytes = self._stream.send(plan)
            num_tokens = plan.num_tokens
            self._plans[plan.step_id] = plan
            self._clock.sent(plan.step_id, num_tokens, now)
            self.metrics.observe_plan(num_tokens, num_bytes)

    @property
    def deadline(self) -> float | None:
        """When a step is overdue or a request expires, unless something happens before."""
        overdue_at = self._clock.deadline if self._stream is not None else None
        expires_at = self.core.next_deadline
        if overdue_at is None or expires_at is None:
            return overdue_at if expires_at is None else expires_at
        return min(overdue_at, expires_at)

    def evacuate(self) -> list[tuple[Request, Outputs]]:
        """Everything unfinished, for other lanes. Only while the executor cannot be reached."""
        self.is_stranded = False
        return self.core.take_all()
