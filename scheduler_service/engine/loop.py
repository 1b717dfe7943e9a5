"""The step loop: drain commands, apply results, schedule, send, publish, sleep.

One thread, one core per executor. A turn is synchronous and never waits for anybody: executors
answer into a lane's queue, and workers are written to by a task of their own. With a run-ahead
depth of 1 or 2 the loop is the same; only the number of steps that a core plans before it asks for
a result is another. Between turns the loop sleeps until a command, a result or a deadline.

No user text comes here: requests are token ids.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from scheduler_service.config import SchedulerConfig
from scheduler_service.core import invariants
from scheduler_service.engine.dispatcher import Dispatcher
from scheduler_service.engine.executor_client import ExecutorClient
from scheduler_service.engine.exposition import Exposition
from scheduler_service.engine.lane import ExecutorLane, LaneState
from scheduler_service.engine.live import LiveRequests
from scheduler_service.engine.messages import Command, Readiness
from scheduler_service.engine.metrics import RequestMetrics
from scheduler_service.engine.served_model import ServedModel
from scheduler_service.engine.server import WorkerLink

MAX_COMMANDS_PER_TURN = 256
"""So that a burst of requests delays running ones by a bounded time per step."""
MAX_COMMANDS_WAITING = 1024
"""Beyond it workers are not read."""


class EngineLoop:
    def __init__(self, config: SchedulerConfig, clients: Sequence[ExecutorClient]) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._metrics = RequestMetrics()
        self._served = ServedModel(config)
        self._live = LiveRequests(self._metrics)
        self.lanes = [ExecutorLane(client, self._served, self) for client in clients]
        self._exposition = Exposition(
            self._metrics, self.lanes, self._served, compat=config.metrics_compat
        )
        self._dispatcher = Dispatcher(
            config, self.lanes, self._live, self._metrics, self._exposition
        )
        self._tasks = asyncio.TaskGroup()
        self._is_running = False
        self._lane_tasks: dict[ExecutorLane, asyncio.Task[None]] = {}
        self._workers: list[WorkerLink] = []
        self._commands: deque[tuple[WorkerLink, Command | None]] = deque()
        """None: the worker is gone."""
        self._readiness = Readiness(False, "starting")
        self._is_model_told = False
        self._busy_since: float | None = None
        self._has_news = asyncio.Event()
        self._is_caught_up = asyncio.Event()
        self._is_caught_up.set()
        self._timer: asyncio.TimerHandle | None = None
        self.ready = asyncio.Event()
        """Set at the first readiness, for whoever started the loop."""
        self.idle = asyncio.Event()
        """Set while no request is live."""
        self.idle.set()

    async def run(self) -> None:
        """Turns until cancelled. Any error in a turn or a lane is a bug and ends the loop."""
        async with self._tasks:
            self._is_running = True
            for lane in self.lanes:
                self._start(lane)
            while True:
                if self._has_news.is_set():
                    await asyncio.sleep(0)  # a set event does not yield, and others must read
                await self._has_news.wait()
                self._has_news.clear()
                self.turn()

    def turn(self) -> None:
        """One pass. Every part of it is bounded by the batch or by a constant."""
        now = self.now()
        self._drain(now)
        for lane in self.lanes:
            lane.apply(now)
            lane.core.expire(now)
        self._move_lost_work()
        for lane in self.lanes:
            lane.plan(now)
        for lane in self.lanes:
            self._publish(lane, now)
        self._note_business(now)
        self._tell_workers(now)
        self._set_timer(now)
        if self._config.check_invariants:
            for lane in self.lanes:
                if lane.core.scheduler is not None:
                    invariants.check(lane.core.scheduler)

    def _publish(self, lane: ExecutorLane, now: float) -> None:
        for events in lane.core.take_events():
            self._live.publish(events, now)
        for request, outputs, message in lane.core.take_unplaced():
            self._live.fail(request, outputs, message)

    def _drain(self, now: float) -> None:
        for _ in range(min(len(self._commands), MAX_COMMANDS_PER_TURN)):
            worker, command = self._commands.popleft()
            if command is not None:
                self._dispatcher.handle(worker, command, now)
                continue
            for request_id in self._live.ids_of(worker):
                self._dispatcher.abort(request_id)
        if self._commands:
            self.wake()
        if len(self._commands) <= MAX_COMMANDS_WAITING:
            self._is_caught_up.set()

    def _move_lost_work(self) -> None:
        """What a lost executor left goes to others; without any it waits for its return."""
        if not any(lane.state is LaneState.READY for lane in self.lanes):
            return
        for lane in self.lanes:
            if lane.is_stranded:
                for request, outputs in lane.evacuate():
                    self._dispatcher.place_again(request, outputs, lane)

    def _note_business(self, now: float) -> None:
        if len(self._live) == 0:
            self._busy_since = None
            self.idle.set()
        elif self._busy_since is None:
            self._busy_since = now
            self.idle.clear()

    def _tell_workers(self, now: float) -> None:
        if not self._is_model_told and self._served.ready is not None:
            self._is_model_told = True
            for worker in self._workers:
                worker.outbox.put_model(self._served.ready)
        readiness = self._assess(now)
        if readiness != self._readiness:
            self._readiness = readiness
            for worker in self._workers:
                worker.outbox.put_readiness(readiness)
            if readiness.ready:
                self.ready.set()
        for worker in self._workers:
            worker.flush()

    def _assess(self, now: float) -> Readiness:
        if self._dispatcher.is_draining:
            return Readiness(False, "the server is shutting down", True)
        if not any(lane.accepts_requests for lane in self.lanes):
            return Readiness(False, "no executor is ready")
        silent_at = self._silent_at()
        if silent_at is not None and now >= silent_at:
            timeout_s = self._config.no_token_timeout
            return Readiness(False, f"requests run and no token came for {timeout_s:g} s")
        return Readiness(True)

    def _silent_at(self) -> float | None:
        """When the running requests will have had no token for too long."""
        if self._busy_since is None:
            return None
        return max(self._busy_since, self._live.last_token_at) + self._config.no_token_timeout

    def _set_timer(self, now: float) -> None:
        """Deadlines mostly move away, so a timer that fires early only looks and sets another."""
        deadlines = [lane.deadline for lane in self.lanes]
        silent_at = self._silent_at()
        if silent_at is not None and silent_at > now:
            deadlines.append(silent_at)
        deadline = min((at for at in deadlines if at is not None), default=None)
        if deadline is None or (self._timer is not None and self._timer.when() <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    def drain(self) -> None:
        """Refuses new requests from now on; running ones go on."""
        self._dispatcher.is_draining = True
        self.wake()

    def abort_all(self) -> None:
        for request_id in self._live.ids():
            self._dispatcher.abort(request_id)
        self.wake()

    # What discovery needs. It acts between two turns.

    def add_lane(self, client: ExecutorClient) -> ExecutorLane:
        """One more executor, from now on."""
        lane = ExecutorLane(client, self._served, self)
        self.lanes.append(lane)
        if self._is_running:
            self._start(lane)
        return lane

    def drop_lane(self, lane: ExecutorLane) -> bool:
        """Forgets an executor that is gone for good.

        False while it is needed: it takes requests, or has some that no other executor took. Those
        are offered to the others once more.
        """
        if lane.accepts_requests:
            return False
        if lane.core.num_sequences:
            lane.is_stranded = True
            self.wake()
            return False
        self._publish(lane, self.now())
        self._exposition.retire(lane)
        self.lanes.remove(lane)
        if lane in self._lane_tasks:
            self._lane_tasks.pop(lane).cancel()
        self.wake()
        return True

    def _start(self, lane: ExecutorLane) -> None:
        self._lane_tasks[lane] = self._tasks.create_task(lane.run())

    # What lanes need.

    def now(self) -> float:
        return self._loop.time()

    def wake(self) -> None:
        self._has_news.set()

    # What the server of the local socket needs.

    def worker_joined(self, worker: WorkerLink) -> None:
        self._workers.append(worker)
        if self._served.ready is not None:
            worker.outbox.put_model(self._served.ready)
        worker.outbox.put_readiness(self._readiness)
        worker.flush()

    def worker_left(self, worker: WorkerLink) -> None:
        self._workers.remove(worker)
        self._commands.append((worker, None))
        self.wake()

    def receive(self, worker: WorkerLink, commands: list[Command]) -> None:
        self._commands.extend((worker, command) for command in commands)
        if len(self._commands) > MAX_COMMANDS_WAITING:
            self._is_caught_up.clear()
        self.wake()

    async def caught_up(self) -> None:
        await self._is_caught_up.wait()
