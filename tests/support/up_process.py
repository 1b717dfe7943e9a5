"""`octavo up` on the real model as a process, for tests that need a whole Octavo."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.processes import command_line, descendants, eventually, is_gone

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"ready http=(http://[0-9.:]+) grpc=([0-9.:]+) model=smollm2-135m\n")

# Sized for tests: a pool of 16k tokens, and steps that leave room for the tests themselves.
FLAGS = (
    "--model=smollm2-135m",
    "--dtype=float32",
    "--port=0",
    "--grpc-port=0",
    "--threads=1",
    "--num-blocks=1024",
    "--max-num-seqs=32",
)


class UpProcess:
    """Enter it to wait for ready; leaving it ends the process and all below it."""

    def __init__(self, *flags: str) -> None:
        # A file, not a pipe: nobody reads it until something went wrong.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed on exit
        began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "octavo", "up", *FLAGS, *flags],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        assert self.process.stdout
        self.ready_line = self.process.stdout.readline()
        self.start_s = time.monotonic() - began
        match = READY.fullmatch(self.ready_line)
        if not match:
            self.close()
            raise AssertionError(f"not ready: {self.ready_line!r}\n{self.errors}")
        self.http, self.grpc = match.groups()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._stderr.close()

    @property
    def errors(self) -> str:
        """What came on stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read()

    def pids(self, *words: str) -> list[int]:
        """Processes of the stack whose command line holds every word."""
        return [
            pid
            for pid in descendants(self.process.pid)
            if all(any(word in part for part in command_line(pid)) for word in words)
        ]

    def executor_addresses(self) -> list[str]:
        """As the scheduler was told them."""
        (pid,) = self.pids("scheduler_service", "--role=supervisor")
        (flag,) = (part for part in command_line(pid) if part.startswith("--executors="))
        return flag.partition("=")[2].split(",")

    def close(self) -> None:
        """Ends what still runs; AssertionError if anything is left after that."""
        children = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        assert eventually(lambda: all(is_gone(pid) for pid in children), patience_s=15)
