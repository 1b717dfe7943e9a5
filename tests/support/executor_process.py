"""An executor process on a free port, for tests that need a real one to talk to, kill or freeze.

with shadow("--latency-ms=5") as executor, executor.channel() as channel: ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from common.grpc_server import Link, channel_options
from common.process import ChildProcess

PATIENCE_S = 30.0


class ExecutorProcess:
    """A child that serves the Executor service, and what it has reported so far."""

    def __init__(self, *flags: str, module: str = "tests.support.shadow_executor_server") -> None:
        argv = [sys.executable, "-m", module, "--port=0", *flags]
        self.process = ChildProcess.start("executor", argv)
        self.seen: list[dict[str, Any]] = []
        self.addresses: dict[str, str] = {}

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Reads status events up to one of this kind."""
        for event in self.process.events():
            self.seen.append(event)
            if event["event"] == "listening":
                self.addresses = event["addresses"]
            if event["event"] == kind:
                return event
        raise AssertionError(f"no {kind} among {self.seen}")

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        address = self.addresses["grpc"]
        with grpc.insecure_channel(address, options=channel_options(Link.INTERNAL)) as channel:
            yield channel


@contextmanager
def shadow(*flags: str, until: str = "ready") -> Iterator[ExecutorProcess]:
    """A shadow executor for the length of a with block."""
    process = ExecutorProcess(*flags)
    try:
        process.wait_for(until)
        yield process
    finally:
        process.process.stop(grace_s=PATIENCE_S)
