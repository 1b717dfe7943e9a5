"""The stack over real processes that only play the services."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from octavo.commands import up
from octavo.stack import config
from octavo.stack.report import Reporter
from octavo.stack.restarts import Restarts
from octavo.stack.supervisor import Stack, StackAddresses, StackError
from tests.support.fake_stack import fake_command_lines
from tests.support.processes import command_line, descendants, eventually, is_gone


class RecordingRenderer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.progress: list[tuple[str, int, int, str]] = []

    def loading(self, name: str, done: int, total: int, what: str) -> None:
        self.progress.append((name, done, total, what))

    def line(self, text: str) -> None:
        self.lines.append(text)

    def settle(self) -> None:
        pass


class Running:
    """A stack running in a thread."""

    def __init__(self, environ: dict[str, str], flags: list[str]) -> None:
        parser = up.make_parser()
        stack = config.from_namespace(parser.parse_args(["--port=0", "--grpc-port=0", *flags]), {})
        self.renderer = RecordingRenderer()
        self.ready = threading.Event()
        self.addresses: StackAddresses | None = None
        self.error: StackError | None = None
        self.reporter = Reporter(self.renderer)
        self.stack = Stack(
            stack,
            reporter=self.reporter,
            on_ready=self._on_ready,
            command_lines=fake_command_lines(stack),
            new_restarts=lambda: Restarts(max_in_a_row=2, first_pause_s=0.01),
            environ={**os.environ, **environ},
        )
        self._mine = descendants(os.getpid())
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _on_ready(self, addresses: StackAddresses) -> None:
        self.addresses = addresses
        self.ready.set()

    def _run(self) -> None:
        try:
            self.stack.run()
        except StackError as error:
            self.error = error

    def pids(self, module: str) -> list[int]:
        """Processes of the stack that run the module, oldest first."""
        children = descendants(os.getpid()) - self._mine
        return sorted(pid for pid in children if any(module in arg for arg in command_line(pid)))

    def executors_of_scheduler(self) -> str:
        assert self.addresses
        with urllib.request.urlopen(f"http://{self.addresses.http}/", timeout=5) as reply:
            return str(reply.read().decode())


@contextmanager
def running(*flags: str, **environ: str) -> Iterator[Running]:
    stack = Running(environ, list(flags))
    try:
        yield stack
    finally:
        stack.stack.request_stop()
        stack.stack.request_stop()
        stack.thread.join(20)
        stack.reporter.close()
        assert not stack.thread.is_alive()
    assert eventually(lambda: not stack.pids("fake_service"))


def test_ready_comes_when_every_executor_is_known_to_the_scheduler() -> None:
    with running("--num-executors=2", "--threads=3") as stack:
        assert stack.ready.wait(20)
        assert len(stack.executors_of_scheduler().split(",")) == 2
        assert len(stack.pids("fake_service_executor")) == 2
    assert stack.error is None
    names = {name for name, *_ in stack.renderer.progress}
    assert names == {"executor-0", "executor-1"}
    assert stack.renderer.lines.count("executor with 3 threads") == 2


@pytest.mark.parametrize(
    ("behaviour", "words"), [("fail", "no such model"), ("mutter", "cannot open the weights")]
)
@pytest.mark.parametrize("service", ["executor", "scheduler"])
def test_a_child_that_dies_before_ready_ends_the_stack_with_its_last_words(
    service: str, behaviour: str, words: str
) -> None:
    with running(**{f"FAKE_{service.upper()}": behaviour}) as stack:
        stack.thread.join(20)
        assert not stack.ready.is_set()
        assert stack.error is not None
        assert words in str(stack.error)
        assert service in str(stack.error)
        assert "status 3" in str(stack.error)


@pytest.mark.parametrize("service", ["executor", "scheduler"])
def test_a_child_that_dies_later_is_started_again_where_it_was(service: str) -> None:
    with running() as stack:
        assert stack.ready.wait(20)
        executors = stack.executors_of_scheduler()
        (old,) = stack.pids(f"fake_service_{service}")
        os.kill(old, signal.SIGKILL)
        assert eventually(lambda: stack.pids(f"fake_service_{service}") not in ([], [old]))
        (new,) = stack.pids(f"fake_service_{service}")
        if service == "executor":
            port = executors.rpartition(":")[2]
            assert f"--port={port}" in command_line(new)
        else:
            assert eventually(lambda: _answers(stack, executors))
    assert stack.error is None
    assert any("SIGKILL" in line for line in stack.renderer.lines)


def _answers(stack: Running, expected: str) -> bool:
    try:
        return stack.executors_of_scheduler() == expected
    except OSError:
        return False


def test_a_child_that_dies_at_every_start_is_given_up(tmp_path: object) -> None:
    with running(FAKE_EXECUTOR="fail-again", FAKE_MARK=f"{tmp_path}/mark") as stack:
        assert stack.ready.wait(20)
        os.kill(stack.pids("fake_service_executor")[0], signal.SIGKILL)
        stack.thread.join(20)
        assert stack.error is not None
        assert "3 times in a row" in str(stack.error)
        assert "the device fell off" in str(stack.error)


def test_stopping_ends_every_child_and_returns() -> None:
    with running("--num-executors=2") as stack:
        assert stack.ready.wait(20)
        pids = stack.pids("fake_service")
        stack.stack.request_stop()
        stack.thread.join(20)
        assert len(pids) == 3
        assert all(is_gone(pid) for pid in pids)
    assert stack.error is None


@pytest.mark.parametrize("service", ["EXECUTOR", "SCHEDULER"])
def test_a_second_stop_does_not_wait_for_a_deaf_child(service: str) -> None:
    with running("--shutdown-timeout=60", **{f"FAKE_{service}": "deaf"}) as stack:
        assert stack.ready.wait(20)
        pids = stack.pids("fake_service")
        began = time.monotonic()
        stack.stack.request_stop()
        stack.stack.request_stop()
        stack.thread.join(20)
        assert time.monotonic() - began < 5
        assert all(is_gone(pid) for pid in pids)


def test_a_stop_during_start_is_obeyed() -> None:
    with running(FAKE_SCHEDULER="never-ready") as stack:
        assert eventually(lambda: bool(stack.pids("fake_service_scheduler")))
        stack.stack.request_stop()
        stack.thread.join(20)
    assert stack.error is None
    assert not stack.ready.is_set()


class WatchedInbox:
    """Tells how long it was waited for."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox
        self.waits: list[float | None] = []

    def put(self, message: object) -> None:
        self._inbox.put(message)

    def get(self, timeout: float | None) -> object:
        self.waits.append(timeout)
        return self._inbox.get(timeout=timeout)


def test_a_signal_that_woke_nobody_is_seen_within_a_second() -> None:
    """Its handler runs in the main thread, when that leaves its wait."""
    with running() as stack:
        assert stack.ready.wait(20)
        inbox: Any = WatchedInbox(stack.stack._inbox)
        stack.stack._inbox = inbox
        assert eventually(lambda: len(inbox.waits) > 1)
        assert all(wait is not None and wait <= 1.0 for wait in inbox.waits)
