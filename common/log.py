"""Logging of a service process: one line per record on stderr, as text or as JSON.

Rule 1: a blocked or full log never blocks serving. Records are formatted where they are made and
written by a thread; when 10,000 lines wait, further ones are dropped and counted.
"""

from __future__ import annotations

import atexit
import json
import logging
import queue
import sys
import threading
import time
from typing import TextIO

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_MAX_WAITING_LINES = 10_000
_FLUSH_AT_EXIT_S = 2.0
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(service: str, level: str, fmt: str, *, stream: TextIO | None = None) -> None:
    """Sends every record of this process to `stream` (stderr). Called once, by `__main__`."""
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service) if fmt == "json" else TextFormatter(service))
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    atexit.register(handler.flush)


class TextFormatter(logging.Formatter):
    """`12:00:01.123 INFO executor: message key=value`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock}.{int(record.msecs):03d} {record.levelname} {self._service}: "
        extra = "".join(f" {key}={value}" for key, value in extra_fields(record).items())
        return head + record.getMessage() + extra + _trace(self, record)


class JsonFormatter(logging.Formatter):
    """One JSON object per line; `extra` fields stand beside the message."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in extra_fields(record).items() if key not in entry}
        if trace := _trace(self, record):
            entry["trace"] = trace.strip()
        return json.dumps(entry, default=str, ensure_ascii=False)


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """What the caller gave as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


class LineHandler(logging.Handler):
    """Queues formatted lines for a writer thread; drops them when too many wait."""

    def __init__(self, stream: TextIO, *, max_waiting_lines: int = _MAX_WAITING_LINES) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | threading.Event] = queue.Queue(max_waiting_lines)
        self._num_dropped = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._num_dropped += 1

    def flush(self) -> None:
        """Waits until all lines so far are written, at most 2 s."""
        written = threading.Event()
        try:
            self._lines.put(written, timeout=_FLUSH_AT_EXIT_S)
        except queue.Full:
            return
        written.wait(_FLUSH_AT_EXIT_S)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            dropped, self._num_dropped = self._num_dropped, 0
            try:
                if dropped:
                    self._stream.write(f"({dropped} log lines dropped)\n")
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                # Disk full or stream closed. There is nowhere left to say so.
                self._num_dropped += dropped + 1


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info else ""
