"""The two services as real processes on ports of their own, joined as an operator would join them.

with Services.shadow(executor=["--num-blocks=64"]) as services:
    httpx.get(f"{services.http}/health")
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from common.grpc_server import Link, channel_options
from common.process import ChildProcess

ROOT = Path(__file__).resolve().parents[2]
_START_S = 100.0
_STOP_S = 20.0


class Child:
    """A started process and what it has reported so far."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = ChildProcess.start(name, [sys.executable, "-m", *argv], environ)
        self.addresses: dict[str, str] = {}
        self._name = name
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name=f"{name}-events", daemon=True).start()

    def _read(self) -> None:
        for event in self.process.events():
            self._events.put(event)
        self._events.put(None)

    def wait_for(self, wanted: str, timeout_s: float = _START_S) -> None:
        """Until the child reports `wanted`; fails at once when it reports failure or ends."""
        for event in self._next_events(timeout_s):
            kind = event["event"]
            if kind == "listening":
                self.addresses |= event["addresses"]
            if kind == "failed":
                raise AssertionError(f"{self._name} failed: {event['message']}")
            if kind == wanted:
                return
        raise AssertionError(f"{self._name} ended before it was {wanted}")

    def _next_events(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        while True:
            try:
                event = self._events.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"{self._name} said nothing for {timeout_s} s") from None
            if event is None:
                return
            yield event


class Services(AbstractContextManager["Services"]):
    """One scheduler service and the executors it was told of."""

    def __init__(self, scheduler: Child, executors: Sequence[Child]) -> None:
        self.scheduler = scheduler
        self.executors = list(executors)
        self.http = f"http://{scheduler.addresses['http']}"
        self.grpc = scheduler.addresses["grpc"]

    @classmethod
    def shadow(cls, *, executor: Sequence[str] = (), scheduler: Sequence[str] = ()) -> Services:
        """Both services, the executor on shadow KV; returns when ready."""
        child = Child("executor", ["tests.support.shadow_executor_server", "--port=0", *executor])
        try:
            child.wait_for("ready")
            return cls.before([child.addresses["grpc"]], [child], scheduler=scheduler)
        except BaseException:
            child.process.stop(_STOP_S)
            raise

    @classmethod
    def before(
        cls, addresses: Sequence[str], children: Sequence[Child] = (), *, scheduler: Sequence[str]
    ) -> Services:
        """A scheduler service before executors that run already."""
        argv = ["scheduler_service", "--port=0", "--grpc-port=0"]
        child = Child("scheduler", [*argv, f"--executors={','.join(addresses)}", *scheduler])
        try:
            child.wait_for("ready")
        except BaseException:
            child.process.stop(_STOP_S)
            raise
        return cls(child, children)

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.grpc, options=channel_options(Link.PUBLIC))

    def executor_channel(self) -> grpc.Channel:
        address = self.executors[0].addresses["grpc"]
        return grpc.insecure_channel(address, options=channel_options(Link.INTERNAL))

    def stop(self) -> None:
        for child in (self.scheduler, *self.executors):
            child.process.stop(_STOP_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
