from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.bench.serving.peers.contestant import Unavailable
from tests.bench.serving.peers.server_process import ServerProcess, answers, free_port, last_words
from tests.support.processes import eventually, is_gone

CHILD = "import subprocess, sys, time; child = subprocess.Popen(['sleep', '60']); {then}"
WAITS = CHILD.format(then="print(f'child {child.pid}.', flush=True); time.sleep(60)")


def python(code: str) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", code])


def test_leaving_ends_the_process_and_its_children() -> None:
    with python(WAITS) as process:
        child = int(process.wait(lambda: process.said(r"child (\d+)\."), 20))
        assert not is_gone(child)
    assert eventually(lambda: is_gone(child))


HOLDER = """
import sys
from tests.bench.serving.peers.server_process import ServerProcess, exit_at_sigterm
exit_at_sigterm()
code = "import os, time; print(f'up {os.getpid()}.', flush=True); time.sleep(60)"
with ServerProcess([sys.executable, "-c", code]) as server:
    print(server.wait(lambda: server.said(r"up (\\d+)\\."), 20), flush=True)
    server.wait(lambda: None, 60)
"""


def test_sigterm_ends_a_program_with_the_servers_it_holds() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        server = int(holder.stdout.readline())
        holder.terminate()
        assert holder.wait(30) == 128 + signal.SIGTERM
        assert eventually(lambda: is_gone(server))
    finally:
        holder.kill()
        holder.communicate()


def test_a_process_that_ends_is_unavailable_for_the_reason_it_gave() -> None:
    with (
        pytest.raises(Unavailable, match="ended with 3: Error: no such model"),
        python("print('Error: no such model\\nbye'); raise SystemExit(3)") as process,
    ):
        process.wait(lambda: None, 20)


def test_one_that_is_never_ready_is_unavailable() -> None:
    with (
        pytest.raises(Unavailable, match="not ready after 0 s"),
        python("import time; time.sleep(60)") as process,
    ):
        process.wait(lambda: None, 0.1)


def test_a_program_that_is_not_there_is_not_installed() -> None:
    with pytest.raises(Unavailable, match="not installed"), ServerProcess(["/no/such/program"]):
        pass


def test_its_last_words_name_the_error() -> None:
    assert last_words("loading\nValueError: bad\n\nshutting down\n") == "ValueError: bad"
    assert last_words("one\ntwo\n") == "two"
    assert last_words("") == "no output"


def test_a_port_on_which_nobody_listens_does_not_answer() -> None:
    assert answers(f"127.0.0.1:{free_port()}", "/health") is None
