"""One run of one child process, as the supervisor sees it: a source of messages."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from common.process import ChildProcess

_NUM_LAST_LINES = 5
_LAST_OUTPUT_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """The child reported on its status pipe."""

    child: Child
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """The process is gone and all of its output that could be had was read."""

    child: Child


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody outside wants the stack to end."""


StackMessage = StatusEvent | ChildEnded | StopRequested
Inbox = SimpleQueue[StackMessage]
"""Simple on purpose: its `put` may be called by a signal handler that interrupted another `put`."""


class Child:
    """A started process, with two threads: one reads its status events, one its output."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        inbox: Inbox,
        on_line: Callable[[str], None],
    ) -> None:
        self.name = name
        self._inbox = inbox
        self._on_line = on_line
        self._started_at = time.monotonic()
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._failure = ""
        self._output, write_fd = os.pipe()
        try:
            self._process = ChildProcess.start(name, argv, environ, output=write_fd)
        finally:
            os.close(write_fd)
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        threading.Thread(target=self._read_events, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def life_s(self) -> float:
        return time.monotonic() - self._started_at

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def terminate(self) -> None:
        """Asks it to end; `ChildEnded` follows."""
        self._process.terminate()

    def close(self) -> None:
        """Ends it at once if it still runs, and lets go of its pipes."""
        self._process.stop(0)

    def last_words(self) -> str:
        """Why it ended, as far as it said so."""
        status = self._process.poll()
        if status is None:
            how = "still runs"
        elif status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        else:
            how = f"ended with status {status}"
        words = self._failure or "\n".join(self._last_lines)
        return f"{self.name} {how}" + (f": {words}" if words else "")

    def _read_events(self) -> None:
        for event in self._process.events():
            if event.get("event") == "failed":
                self._failure = str(event.get("message"))
            self._inbox.put(StatusEvent(self, event))
        self._process.wait()
        # A grandchild may hold the pipe open for longer.
        self._reader.join(_LAST_OUTPUT_PATIENCE_S)
        self._inbox.put(ChildEnded(self))

    def _read_output(self) -> None:
        with open(self._output, encoding="utf-8", errors="replace") as output:
            for line in output:
                self._last_lines.append(line.rstrip())
                self._on_line(line.rstrip())
