"""`octavo up` as a process of its own; the services behind it are played."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.processes import descendants, eventually, is_gone

READY = re.compile(r"ready http=http://127\.0\.0\.1:(\d+) grpc=127\.0\.0\.1:(\d+) model=(\S+)\n")


@contextmanager
def octavo_up(*flags: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fake_up", "--port=0", "--grpc-port=0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ".", **environ},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def wait_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_stdout_holds_exactly_one_line_with_ready_and_the_addresses() -> None:
    with octavo_up("--model=some-model") as process:
        line = wait_ready(process)
        match = READY.fullmatch(line)
        assert match, line
        assert match[3] == "some-model"
        for port in match.group(1, 2):
            socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
        assert rest == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_with_status_0(number: signal.Signals) -> None:
    with octavo_up() as process:
        wait_ready(process)
        children = descendants(process.pid)
        assert len(children) == 2
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
        assert all(is_gone(pid) for pid in children)


def test_a_signal_before_ready_ends_everything_too() -> None:
    with octavo_up(FAKE_SCHEDULER="never-ready") as process:
        assert eventually(lambda: len(descendants(process.pid)) == 2)
        children = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert all(is_gone(pid) for pid in children)


def test_children_die_with_a_parent_that_was_killed() -> None:
    with octavo_up("--num-executors=2") as process:
        wait_ready(process)
        children = descendants(process.pid)
        assert len(children) == 3
        process.kill()
        process.wait(timeout=10)
        assert eventually(lambda: all(is_gone(pid) for pid in children), patience_s=10)


def test_a_child_that_cannot_start_is_a_non_zero_end_with_its_last_words() -> None:
    with octavo_up(FAKE_EXECUTOR="fail") as process:
        out, err = process.communicate(timeout=20)
        assert process.returncode == 1
        assert out == ""
        assert "no such model" in err


def test_progress_is_told_in_lines_where_there_is_no_terminal() -> None:
    with octavo_up() as process:
        wait_ready(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert "executor-0: weights 1/2" in err
    assert "executor-0: weights 2/2" in err


@pytest.mark.parametrize("flag", ["--port", "--grpc-port"])
def test_a_configured_port_in_use_is_told_within_2_s_by_its_flag(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        began = time.monotonic()
        result = subprocess.run(
            [sys.executable, "-m", "octavo", "up", "--port=0", "--grpc-port=0", f"{flag}={port}"],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": "."},
            text=True,
            timeout=20,
        )
        took_s = time.monotonic() - began
    assert result.returncode == 2
    assert result.stdout == ""
    assert f"{flag}: port {port}" in result.stderr
    # The promise is 2 s on an idle machine; tests share theirs.
    assert took_s < 5


def test_two_stacks_with_automatic_ports_do_not_collide() -> None:
    with octavo_up() as one, octavo_up() as other:
        lines = {wait_ready(one), wait_ready(other)}
        assert len(lines) == 2
        assert all(READY.fullmatch(line) for line in lines)
