from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from common.process import ChildProcess
from tests.common.process_child import command

PATIENCE_S = 20.0


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody reaped counts."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_events_arrive_in_order_and_end_with_the_child() -> None:
    child = ChildProcess.start("fails", command("fails"))
    events = list(child.events())
    assert [event["event"] for event in events] == ["loading", "listening", "ready", "failed"]
    assert events[0] == {"event": "loading", "done": 1, "total": 2, "what": "weights"}
    assert events[3]["message"].startswith("no such model")
    assert child.stop(grace_s=PATIENCE_S) == 3
    assert child.poll() == 3


def test_stop_ends_a_willing_child_with_its_own_status() -> None:
    child = ChildProcess.start("willing", command("willing"))
    assert child.poll() is None
    assert any(event["event"] == "ready" for event in child.events())
    assert child.stop(grace_s=PATIENCE_S) == 0


def test_stop_kills_a_stubborn_child_after_the_grace() -> None:
    child = ChildProcess.start("stubborn", command("stubborn"))
    assert any(event["event"] == "ready" for event in child.events())
    assert child.stop(grace_s=0.2) == -signal.SIGKILL


def test_stop_is_idempotent() -> None:
    child = ChildProcess.start("fails", command("fails"))
    assert child.stop(grace_s=PATIENCE_S) == child.stop(grace_s=PATIENCE_S)


def test_child_inherits_no_fd_but_its_two_pipes() -> None:
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    child = ChildProcess.start("willing", command("willing"))
    try:
        listening = next(e for e in child.events() if e["event"] == "listening")
        # stdin, stdout, stderr, two pipes, and the listing's own.
        assert len(listening["addresses"]["fds"].split(",")) == 6
    finally:
        os.close(leak)
        child.stop(grace_s=PATIENCE_S)


def test_parent_that_does_not_read_cannot_block_the_child() -> None:
    child = ChildProcess.start("flood", command("flood"))
    assert child.wait(PATIENCE_S) == 5
    child.stop(grace_s=0)


def test_grandchild_dies_with_a_sigkilled_parent() -> None:
    child = ChildProcess.start("parent", command("parent"))
    listening = next(e for e in child.events() if e["event"] == "listening")
    grandchild = int(listening["addresses"]["pid"])
    assert not is_gone(grandchild)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(PATIENCE_S) == -signal.SIGKILL
    assert eventually(lambda: is_gone(grandchild))
    child.stop(grace_s=0)
