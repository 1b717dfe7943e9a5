"""A server as a process: started, waited for, ended with everything that it started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, TypeVar

from tests.bench.serving.peers.contestant import Unavailable

T = TypeVar("T")

POLL_S = 0.05
GRACE_S = 10.0
MAX_REASON = 300


class ServerProcess:
    """Leaving the block ends its whole process group."""

    def __init__(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._argv = [str(part) for part in argv]
        self._env = {**os.environ, **(env or {})}
        # A file, not a pipe: a pipe that nobody reads would stop the server.
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed on exit

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._output.close()
            raise Unavailable(f"not installed: {error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._output.close()

    def wait(self, probe: Callable[[], T | None], patience_s: float) -> T:
        """What `probe` found at last; Unavailable if the process ends or time runs out first."""
        deadline = time.monotonic() + patience_s
        while (found := probe()) is None:
            if self._process.poll() is not None:
                raise Unavailable(f"ended with {self._process.returncode}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"not ready after {patience_s:.0f} s: {self.last_words()}")
            time.sleep(POLL_S)
        return found

    def said(self, pattern: str) -> str | None:
        """The first group of the first match in what it wrote so far."""
        match = re.search(pattern, self._written())
        return match[1] if match else None

    def last_words(self) -> str:
        return last_words(self._written())

    def _written(self) -> str:
        # A descriptor of its own position: the process writes through the other one.
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")


def exit_at_sigterm() -> None:
    """Makes SIGTERM leave every block of this process, and end with them the servers they hold.

    They are no part of its process group: nothing else would end them. For a main program.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def last_words(output: str) -> str:
    """The line that says most: the last one that tells an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"ERROR|[eE]rror:|Exception:", line)]
    return (telling or lines or ["no output"])[-1][:MAX_REASON]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(address: str, path: str) -> bool | None:
    """True for 200; None for anything else, as `wait` wants it."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=2) as answer:
            return True if answer.status == 200 else None
    except (urllib.error.URLError, OSError):
        return None
