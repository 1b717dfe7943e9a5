"""The supervisor over scripted processes, and what importing the service costs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from common.process import ChildProcess
from scheduler_service.app.supervisor import ECHO_S, MAX_RESTARTS
from tests.support.processes import eventually, is_gone

ROOT = Path(__file__).resolve().parents[2]
ENVIRON = os.environ | {"PYTHONPATH": str(ROOT)}


class Supervised:
    """A supervisor process and the fake processes it started."""

    def __init__(self, directory: Path, behaviour: str, flags: Sequence[str]) -> None:
        self.directory = directory
        argv = [sys.executable, "-m", "tests.support.supervise", behaviour, str(directory)]
        argv += ["--port=0", "--grpc-port=0", "--executors=127.0.0.1:1", *flags]
        self.process = ChildProcess.start("supervise", argv, ENVIRON)
        self._events = self.process.events()
        self.seen: list[dict[str, object]] = []

    def wait_for(self, wanted: str) -> dict[str, object]:
        for event in self._events:
            self.seen.append(event)
            if event["event"] == wanted:
                return event
        raise AssertionError(f"ended before {wanted!r}; saw {self.seen}")

    def pids(self, role: str) -> set[int]:
        return {int(path.name.rpartition("-")[2]) for path in self.directory.glob(f"{role}-*")}

    def live_pid(self, role: str) -> int:
        """Of the one that lives, once there is one."""
        assert eventually(lambda: any(not is_gone(pid) for pid in self.pids(role)))
        return next(pid for pid in self.pids(role) if not is_gone(pid))

    def note(self, role: str, pid: int) -> dict[str, object]:
        note: dict[str, object] = json.loads((self.directory / f"{role}-{pid}").read_text())
        return note

    def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.process.pid, number)


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def start(behaviour: str = "", *flags: str) -> Supervised:
        started.append(Supervised(tmp_path, behaviour, flags))
        return started[-1]

    yield start
    for supervised in started:
        supervised.process.stop(5.0)
        for pid in supervised.pids("*"):
            assert eventually(partial(is_gone, pid)), "no child outlives its supervisor"


def test_importing_the_service_brings_in_no_torch() -> None:
    code = (
        "import sys, scheduler_service.app\n"
        "heavy = {'torch', 'transformers', 'triton'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRON, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_addresses_and_readiness_of_the_children_are_forwarded(start: Start) -> None:
    supervised = start()
    event = supervised.wait_for("listening")
    addresses = event["addresses"]
    assert isinstance(addresses, dict) and set(addresses) == {"http", "grpc"}
    supervised.wait_for("ready")
    assert len(supervised.pids("engine")) == len(supervised.pids("api")) == 1


def test_several_api_workers_share_one_port(start: Start) -> None:
    supervised = start("", "--api-workers=2")
    supervised.wait_for("ready")
    ports = {supervised.note("api", pid)["port"] for pid in supervised.pids("api")}
    assert len(supervised.pids("api")) == 2
    assert len(ports) == 1 and ports != {0}


def test_sigterm_ends_every_child_and_then_the_service_with_status_zero(start: Start) -> None:
    supervised = start()
    supervised.wait_for("ready")
    supervised.signal()
    assert supervised.process.wait(20.0) == 0
    assert all(is_gone(pid) for pid in supervised.pids("*"))


def test_draining_waits_for_running_requests(start: Start) -> None:
    supervised = start("drains-slowly")
    supervised.wait_for("ready")
    supervised.signal()
    assert supervised.process.wait(0.5) is None
    (supervised.directory / "drained").touch()
    assert supervised.process.wait(20.0) == 0


def test_workers_answer_until_the_step_loop_has_ended(start: Start) -> None:
    supervised = start("stubborn", "--shutdown-timeout=60")
    supervised.wait_for("ready")
    supervised.signal()
    assert supervised.process.wait(ECHO_S + 0.1) is None
    assert not any(is_gone(pid) for pid in supervised.pids("api"))
    supervised.signal()
    assert supervised.process.wait(5.0) == 128 + signal.SIGTERM


def test_a_second_signal_ends_at_once(start: Start) -> None:
    supervised = start("drains-slowly", "--shutdown-timeout=60")
    supervised.wait_for("ready")
    supervised.signal()
    assert eventually(lambda: all(is_gone(pid) for pid in supervised.pids("engine")))
    assert supervised.process.wait(ECHO_S + 0.1) is None
    supervised.signal(signal.SIGINT)
    assert supervised.process.wait(5.0) == 128 + signal.SIGINT


def test_a_signal_that_comes_twice_at_once_is_one(start: Start) -> None:
    supervised = start("drains-slowly")
    supervised.wait_for("ready")
    supervised.signal()
    supervised.signal()
    assert supervised.process.wait(0.5) is None
    (supervised.directory / "drained").touch()
    assert supervised.process.wait(20.0) == 0


def test_a_child_that_ignores_sigterm_is_killed_when_its_time_is_up(start: Start) -> None:
    supervised = start("stubborn", "--shutdown-timeout=0")
    supervised.wait_for("ready")
    supervised.signal()
    assert supervised.process.wait(20.0) == 1


@pytest.mark.parametrize("role", ["api", "engine"])
def test_a_child_that_dies_is_started_again(start: Start, role: str) -> None:
    supervised = start()
    supervised.wait_for("ready")
    first = supervised.live_pid(role)
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: len(supervised.pids(role)) == 2)
    second = supervised.live_pid(role)
    assert second != first
    assert supervised.process.poll() is None


def test_a_restarted_worker_listens_where_it_did(start: Start) -> None:
    supervised = start()
    event = supervised.wait_for("listening")
    first = supervised.live_pid("api")
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: len(supervised.pids("api")) == 2)
    port = supervised.note("api", supervised.live_pid("api"))["port"]
    addresses = event["addresses"]
    assert isinstance(addresses, dict)
    assert addresses["http"] == f"127.0.0.1:{port}"


def test_a_child_that_keeps_dying_ends_the_service(start: Start) -> None:
    supervised = start("engine-crashes")
    supervised.wait_for("failed")
    assert supervised.process.wait(20.0) == 1
    assert len(supervised.pids("engine")) == MAX_RESTARTS + 1


def test_a_child_that_cannot_start_ends_the_service_with_its_reason(start: Start) -> None:
    supervised = start("api-fails")
    event = supervised.wait_for("failed")
    assert "scripted failure" in str(event["message"])
    status = supervised.process.wait(20.0)
    assert status is not None and status != 0


def test_children_die_with_a_supervisor_that_was_killed(start: Start) -> None:
    supervised = start()
    supervised.wait_for("ready")
    supervised.signal(signal.SIGKILL)
    for pid in supervised.pids("*"):
        assert eventually(partial(is_gone, pid))


def test_secrets_reach_children_but_not_their_command_lines(start: Start) -> None:
    supervised = start("", "--api-key=s3cret")
    supervised.wait_for("ready")
    pid = supervised.live_pid("api")
    assert supervised.note("api", pid)["api_key"] == "s3cret"
    assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("flag", ["--port", "--grpc-port"])
def test_a_port_in_use_is_said_at_once_and_with_its_flag(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"--port": 0, "--grpc-port": 0, flag: taken.getsockname()[1]}
        argv = [sys.executable, "-m", "scheduler_service", "--executors=127.0.0.1:1"]
        argv += [f"{name}={port}" for name, port in ports.items()]
        started_at = time.monotonic()
        done = subprocess.run(argv, env=ENVIRON, capture_output=True, text=True, timeout=20)
        took_s = time.monotonic() - started_at
    assert done.returncode != 0
    assert f"{flag}:" in done.stderr
    assert took_s < 2.0


def test_a_service_without_executors_does_not_start() -> None:
    argv = [sys.executable, "-m", "scheduler_service", "--port=0", "--grpc-port=0"]
    environ = {name: value for name, value in ENVIRON.items() if name != "OCTAVO_EXECUTORS"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "--executors" in done.stderr


def test_a_wrong_flag_is_named_and_changes_nothing() -> None:
    argv = [sys.executable, "-m", "scheduler_service", "--max-num-seqs=none"]
    done = subprocess.run(argv, env=ENVIRON, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "--max-num-seqs" in done.stderr
