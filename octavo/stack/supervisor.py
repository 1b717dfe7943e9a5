"""Starts the children of a stack, keeps them alive, ends them.

One thread runs `Stack.run`, a loop over one inbox. Executors come first; once all of them have told
their addresses, the scheduler is started with these. From the first 200 of /health/ready on, a
child that dies is started again on the port it had, so that everybody finds it where it was. Before
that, and when it dies too often, the stack ends with the child's last words.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import OctavoError
from octavo.stack.child import Child, ChildEnded, Inbox, StackMessage, StatusEvent, StopRequested
from octavo.stack.command_lines import CommandLines
from octavo.stack.config import StackConfig
from octavo.stack.readiness import is_ready
from octavo.stack.report import Reporter
from octavo.stack.restarts import Restarts

READY_POLL_S = 0.05
READY_PATIENCE_S = 60.0
"""From all executors loaded to the first 200 of /health/ready."""
EXECUTOR_GRACE_S = 2.5
SCHEDULER_MARGIN_S = 4.0
"""Over its --shutdown-timeout; with the default one and the executors' grace under 10 s in all."""
URGENT_GRACE_S = 1.0
SIGNAL_PATIENCE_S = 1.0
"""A signal that comes just before the inbox is waited for wakes nobody; its handler runs when the
wait ends."""


class StackError(OctavoError):
    """A child cannot be kept alive; the message holds its last words."""


@dataclass(frozen=True, slots=True)
class StackAddresses:
    """Where clients connect, host:port."""

    http: str
    grpc: str


@dataclass(slots=True, eq=False)
class _Slot:
    """A child's place: what it is started with outlives each run of it."""

    name: str
    argv: Callable[[], list[str]]
    restarts: Restarts
    child: Child | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    was_started: bool = False
    ready: bool = False
    start_at: float | None = None
    """When to start it again, on the monotonic clock."""

    def port(self, protocol: str, configured: int) -> int:
        """The port it was bound to once, or the configured one before that."""
        address = self.addresses.get(protocol)
        return int(address.rpartition(":")[2]) if address else configured


class Stack:
    """Call `run` once, in any thread; `request_stop` from any thread or a signal handler."""

    def __init__(
        self,
        stack: StackConfig,
        *,
        reporter: Reporter,
        on_ready: Callable[[StackAddresses], None],
        command_lines: CommandLines | None = None,
        new_restarts: Callable[[], Restarts] = Restarts,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._config = stack
        self._reporter = reporter
        self._on_ready = on_ready
        self._command_lines = command_lines or CommandLines(stack)
        self._environ = self._command_lines.environ(environ)
        self._new_restarts = new_restarts
        self._inbox: Inbox = Inbox()
        self._executors = [self._executor_slot(index) for index in range(stack.num_executors)]
        self._scheduler = _Slot("scheduler", self._scheduler_argv, new_restarts())
        self._ready_by: float | None = None
        self._announced = False

    def request_stop(self) -> None:
        """Ends the stack in order; a second time: at once."""
        self._inbox.put(StopRequested())

    def run(self) -> None:
        """Returns after `request_stop`, when every child is gone; else raises StackError."""
        try:
            for slot in self._executors:
                self._start(slot)
            while not isinstance(message := self._next_message(), StopRequested):
                if message is not None:
                    self._handle(message)
                self._do_what_is_due()
        finally:
            self._reporter.settle()
            self._stop_children()

    def _executor_slot(self, index: int) -> _Slot:
        def argv() -> list[str]:
            return self._command_lines.executor(index, slot.port("grpc", 0))

        slot = _Slot(f"executor-{index}", argv, self._new_restarts())
        return slot

    def _scheduler_argv(self) -> list[str]:
        executors = [slot.addresses["grpc"] for slot in self._executors]
        port = self._scheduler.port("http", self._config.scheduler.port)
        grpc_port = self._scheduler.port("grpc", self._config.scheduler.grpc_port)
        return self._command_lines.scheduler(executors, port, grpc_port)

    def _start(self, slot: _Slot) -> None:
        slot.start_at = None
        slot.was_started = True
        slot.child = Child(
            slot.name,
            slot.argv(),
            self._environ,
            inbox=self._inbox,
            on_line=self._reporter.line,
        )

    def _next_message(self) -> StackMessage | None:
        """None when something else is due first."""
        now = time.monotonic()
        due = [slot.start_at for slot in self._slots() if slot.start_at is not None]
        due.append(now + SIGNAL_PATIENCE_S)
        if not self._announced and self._ready_by is not None:
            due.append(now + READY_POLL_S)
        try:
            return self._inbox.get(timeout=max(0.0, min(due) - now))
        except queue.Empty:
            return None

    def _handle(self, message: StackMessage) -> None:
        if isinstance(message, StatusEvent):
            self._handle_status(message)
        elif isinstance(message, ChildEnded):
            self._handle_end(message.child)

    def _handle_status(self, message: StatusEvent) -> None:
        slot, event = self._slot_of(message.child), message.event
        match event.get("event"):
            case "loading":
                self._reporter.loading(slot.name, event["done"], event["total"], event["what"])
            case "listening":
                slot.addresses.update(event["addresses"])
                if not self._scheduler.was_started and self._all_executors_listen():
                    self._start(self._scheduler)
            case "ready":
                slot.ready = True
                if self._announced and all(slot.ready for slot in self._slots()):
                    self._reporter.settle()

    def _handle_end(self, child: Child) -> None:
        slot = self._slot_of(child)
        child.close()
        slot.child, slot.ready = None, False
        if not self._announced:
            raise StackError(child.last_words())
        pause_s = slot.restarts.died(child.life_s)
        if pause_s is None:
            raise StackError(
                f"{slot.name} died {slot.restarts.in_a_row} times in a row; "
                f"at last {child.last_words()}"
            )
        self._reporter.line(f"{child.last_words()}\n{slot.name}: starting again in {pause_s:g} s")
        slot.start_at = time.monotonic() + pause_s

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        for slot in self._slots():
            if slot.start_at is not None and slot.start_at <= now:
                self._start(slot)
        if not self._announced:
            self._announce_if_ready(now)

    def _announce_if_ready(self, now: float) -> None:
        addresses = self._scheduler.addresses
        if not {"http", "grpc"} <= addresses.keys() or not all(s.ready for s in self._executors):
            return
        if self._ready_by is None:
            self._ready_by = now + READY_PATIENCE_S
        if is_ready(addresses["http"]):
            self._announced = True
            self._reporter.settle()
            self._on_ready(StackAddresses(http=addresses["http"], grpc=addresses["grpc"]))
        elif now > self._ready_by:
            raise StackError(
                f"executors are loaded, but the scheduler was not ready within "
                f"{READY_PATIENCE_S:g} s"
            )

    def _stop_children(self) -> None:
        """The scheduler first, so that running requests may end; then the executors."""
        executors = [slot.child for slot in self._executors if slot.child]
        scheduler = [self._scheduler.child] if self._scheduler.child else []
        grace_s = self._config.scheduler.shutdown_timeout + SCHEDULER_MARGIN_S
        if not self._end(scheduler, grace_s, urgent=[*scheduler, *executors]):
            executors_grace_s = URGENT_GRACE_S
        else:
            executors_grace_s = EXECUTOR_GRACE_S
        self._end(executors, executors_grace_s, urgent=executors)

    def _end(self, children: Sequence[Child], grace_s: float, *, urgent: Sequence[Child]) -> bool:
        """Ends `children` within their grace. False: `request_stop` came again meanwhile."""
        for child in children:
            child.terminate()
        deadline = time.monotonic() + grace_s
        patient = True
        while not all(child.has_ended for child in children):
            try:
                message = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(message, StopRequested) and patient:
                patient = False
                deadline = min(deadline, time.monotonic() + URGENT_GRACE_S)
                for child in urgent:
                    child.terminate()
        for child in children:
            if not child.has_ended:
                self._reporter.line(f"{child.name} did not end in time and is killed")
            child.close()
        return patient

    def _slots(self) -> list[_Slot]:
        return [*self._executors, self._scheduler]

    def _slot_of(self, child: Child) -> _Slot:
        return next(slot for slot in self._slots() if slot.child is child)

    def _all_executors_listen(self) -> bool:
        return all("grpc" in slot.addresses for slot in self._executors)
