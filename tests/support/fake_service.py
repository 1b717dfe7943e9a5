"""Child processes that report like the services, load nothing and do as they are told.

`python -m tests.support.fake_service_executor` and `..._scheduler` take the real flags. What goes
wrong is said by FAKE_EXECUTOR or FAKE_SCHEDULER in the environment:

    fail            reports a failure and ends with status 3
    mutter          ends with status 3, having said why on stderr alone
    fail-again      starts well once, then fails at every later start (FAKE_MARK is a file)
    deaf            ignores SIGTERM
    never-ready     answers 503 for ever (scheduler)
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from common.config import parse
from common.process import ProcessStatus, die_with_parent
from executor_service.config import ExecutorConfig
from scheduler_service.config import SchedulerConfig


def run_executor(argv: Sequence[str]) -> None:
    config = parse(ExecutorConfig, argv, prog="fake executor")
    status = _begin(config.status_fd, config.parent_fd, os.environ.get("FAKE_EXECUTOR", ""))
    listener = socket.create_server((config.host, config.port))
    status.loading(1, 2, "weights")
    status.listening({"grpc": f"{config.host}:{listener.getsockname()[1]}"})
    status.loading(2, 2, "weights")
    sys.stderr.write(f"executor with {config.threads} threads\n")
    status.ready()
    _wait_for_sigterm()


def run_scheduler(argv: Sequence[str]) -> None:
    config = parse(SchedulerConfig, argv, prog="fake scheduler")
    behaviour = os.environ.get("FAKE_SCHEDULER", "")
    status = _begin(config.status_fd, config.parent_fd, behaviour)

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(503 if behaviour == "never-ready" else 200)
            self.end_headers()
            self.wfile.write(",".join(config.executors).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((config.host, config.port), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    listener = socket.create_server((config.host, config.grpc_port))
    status.listening(
        {
            "http": f"{config.host}:{server.server_port}",
            "grpc": f"{config.host}:{listener.getsockname()[1]}",
        }
    )
    status.ready()
    _wait_for_sigterm()


def _begin(status_fd: int | None, parent_fd: int | None, behaviour: str) -> ProcessStatus:
    signals = {signal.SIGTERM}
    # Blocked before anything is reported, so that no SIGTERM falls between report and wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    die_with_parent(parent_fd, grace_s=1.0)
    status = ProcessStatus(status_fd)
    if behaviour == "fail":
        status.failed("no such model")
        raise SystemExit(3)
    if behaviour == "mutter":
        sys.stderr.write("cannot open the weights\n")
        raise SystemExit(3)
    if behaviour == "fail-again":
        mark = os.environ["FAKE_MARK"]
        if os.path.exists(mark):
            status.failed("the device fell off")
            raise SystemExit(3)
        with open(mark, "w"):
            pass
    if behaviour == "deaf":
        threading.Event().wait(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return status


def _wait_for_sigterm() -> None:
    signal.sigwait({signal.SIGTERM})
