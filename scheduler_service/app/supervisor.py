"""Starts the step loop and the API workers, watches them, and ends them in order.

    child dies, unexpected    started again; too often, or before it ever worked: exit non-zero
    first SIGTERM or SIGINT   all drain: running requests get --shutdown-timeout; exit 0
    second one                everything ends at once
    supervisor dies           its children see their lifeline close and end themselves

Everything that happens is one message in one queue; only `run` acts.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from common.config import secret_environ, to_argv
from common.errors import ConfigError
from common.process import ChildProcess, ProcessStatus
from scheduler_service.app.ports import settled_ports
from scheduler_service.config import SchedulerConfig

log = logging.getLogger(__name__)

KILL_MARGIN_S = 5.0
"""Beyond --shutdown-timeout, for children to end after their requests have."""
ECHO_S = 0.5
"""Signals closer than this are one: some senders signal a process and then its group as well."""
MAX_RESTARTS = 5
RESTART_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class ChildReport:
    child: Child
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChildExit:
    child: Child
    status: int


@dataclass(frozen=True, slots=True)
class Signal:
    number: int
    at: float
    """By time.monotonic."""


Message = ChildReport | ChildExit | Signal


@dataclass(slots=True, eq=False)
class Child:
    """One seat among the service's processes; restarts put another process on it."""

    name: str
    config: SchedulerConfig
    process: ChildProcess | None = None
    addresses: dict[str, str] | None = None
    is_ready: bool = False
    failure: str | None = None
    restarts: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RESTARTS))

    @property
    def has_worked(self) -> bool:
        return self.addresses is not None


SERVICE_COMMAND = (sys.executable, "-m", "scheduler_service")


class Supervisor:
    """`command` starts one of the service's processes when given its flags."""

    def __init__(
        self,
        config: SchedulerConfig,
        status: ProcessStatus,
        *,
        command: Sequence[str] = SERVICE_COMMAND,
    ) -> None:
        self._config = config
        self._command = command
        self._status = status
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._children: list[Child] = []
        self._is_announced = False
        self._drained_at: float | None = None
        """When somebody asked to stop; None: nobody did."""

    def run(self) -> int:
        """Returns the exit status once every child has ended. ConfigError before any is started."""
        if not self._config.executors:
            raise ConfigError("--executors: name at least one executor, host:port")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        with (
            settled_ports(self._config) as config,
            tempfile.TemporaryDirectory(prefix="octavo-") as directory,
        ):
            self._children = _plan_children(config, os.path.join(directory, "engine.sock"))
            try:
                for child in self._children:
                    self._start(child)
                return self._watch()
            finally:
                self._kill_all()

    def _signalled(self, number: int, _: object) -> None:
        """On the main thread, wherever that is: a SimpleQueue may be put to from a handler."""
        self._messages.put(Signal(number, time.monotonic()))

    def _watch(self) -> int:
        while True:
            try:
                message = self._messages.get(timeout=self._patience_s())
            except queue.Empty:
                log.error("children did not end in time; killing them")
                return 1
            match message:
                case ChildReport(child, event):
                    self._heed(child, event)
                case ChildExit(child, status):
                    exit_status = self._child_ended(child, status)
                    if exit_status is not None:
                        return exit_status
                case Signal(number, at):
                    if self._drained_at is None:
                        self._drain(at)
                    elif at - self._drained_at >= ECHO_S:
                        log.warning("a second signal; ending at once")
                        return 128 + number

    def _patience_s(self) -> float | None:
        if self._drained_at is None:
            return None
        ends_by = self._drained_at + self._config.shutdown_timeout + KILL_MARGIN_S
        return max(0.0, ends_by - time.monotonic())

    def _start(self, child: Child) -> None:
        argv = [*self._command, *to_argv(child.config, SchedulerConfig)]
        environ = os.environ | secret_environ(child.config, SchedulerConfig)
        process = child.process = ChildProcess.start(child.name, argv, environ)
        log.info("started", extra={"child": child.name, "pid": process.pid})
        threading.Thread(
            target=self._follow, args=(child, process), name=f"{child.name}-events", daemon=True
        ).start()

    def _follow(self, child: Child, process: ChildProcess) -> None:
        for event in process.events():
            self._messages.put(ChildReport(child, event))
        status = process.wait()
        self._messages.put(ChildExit(child, status if status is not None else 0))

    def _heed(self, child: Child, event: dict[str, Any]) -> None:
        match event:
            case {"event": "loading", "done": done, "total": total, "what": what}:
                self._status.loading(done, total, what)
            case {"event": "listening", "addresses": addresses}:
                child.addresses = addresses
                _keep_ports(child)
                self._announce_addresses()
            case {"event": "ready"}:
                child.is_ready = True
                self._announce_ready()
            case {"event": "failed", "message": message}:
                child.failure = message

    def _announce_addresses(self) -> None:
        if self._is_announced or not all(child.has_worked for child in self._children):
            return
        self._is_announced = True
        addresses = {
            kind: address
            for child in self._children
            if child.config.role == "api" and child.addresses is not None
            for kind, address in child.addresses.items()
        }
        log.info("listening", extra=addresses)
        self._status.listening(addresses)

    def _announce_ready(self) -> None:
        """Again at every child's word: a parent takes the first."""
        if self._is_announced and all(child.is_ready for child in self._children):
            log.info("ready")
            self._status.ready()

    def _child_ended(self, child: Child, status: int) -> int | None:
        """The exit status of the service, if it ends with this child."""
        if child.process is not None:
            child.process.stop(0)  # it has ended: this only closes our ends of its pipes
        child.process = None
        if self._drained_at is not None:
            if child.config.role == "engine":
                self._terminate("api")
            is_last = all(other.process is None for other in self._children)
            return 0 if is_last else None
        reason = child.failure or f"exit status {status}"
        if not child.has_worked:
            self._give_up(f"{child.name} could not start: {reason}")
            return status if status > 0 else 1
        now = time.monotonic()
        if len(child.restarts) == MAX_RESTARTS and now - child.restarts[0] < RESTART_WINDOW_S:
            self._give_up(f"{child.name} keeps dying: {reason}")
            return 1
        log.error("%s died (%s); starting it again", child.name, reason)
        child.restarts.append(now)
        child.failure = None
        self._start(child)
        return None

    def _give_up(self, message: str) -> None:
        log.error("%s", message)
        self._status.failed(message)

    def _drain(self, now: float) -> None:
        """The step loop first: it ends when its last request has, and until then the workers
        answer, to say that they are not ready and to refuse new requests."""
        log.info("draining", extra={"timeout_s": self._config.shutdown_timeout})
        self._drained_at = now
        if not self._terminate("engine"):
            self._terminate("api")

    def _terminate(self, role: str) -> int:
        """Asks the processes of that role to end; returns how many there are."""
        processes = [
            child.process
            for child in self._children
            if child.config.role == role and child.process is not None
        ]
        for process in processes:
            process.terminate()
        return len(processes)

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None:
                child.process.stop(0)


def _plan_children(config: SchedulerConfig, socket_path: str) -> list[Child]:
    config = replace(config, engine_socket=socket_path, status_fd=None, parent_fd=None)
    children = [Child("engine", replace(config, role="engine"))]
    worker = replace(config, role="api")
    return children + [Child(f"api-{number}", worker) for number in range(config.api_workers)]


def _keep_ports(child: Child) -> None:
    """A worker that is started again listens where it did."""
    if child.config.role != "api" or child.addresses is None:
        return
    ports = {kind: int(at.rpartition(":")[2]) for kind, at in child.addresses.items()}
    child.config = replace(
        child.config,
        port=ports.get("http", child.config.port),
        grpc_port=ports.get("grpc", child.config.grpc_port),
    )
