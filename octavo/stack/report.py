"""What the person at the terminal sees of the stack: progress, and the children's own lines.

Rule: whoever reports never waits. A writer thread does all output, and when a reader of stderr has
stopped reading, lines are dropped instead of holding up the stack's shutdown.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_MAX_WAITING = 10_000
_FLUSH_S = 1.0


class Renderer(Protocol):
    """Called by one thread."""

    def loading(self, name: str, done: int, total: int, what: str) -> None: ...
    def line(self, text: str) -> None: ...
    def settle(self) -> None:
        """Loading is over: take the progress away, so that lines stand alone."""


class PlainRenderer:
    """Lines, for files and pipes: of each kind of progress its first, its last and one a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: dict[str, tuple[str, float]] = {}

    def loading(self, name: str, done: int, total: int, what: str) -> None:
        last_what, last_time = self._last.get(name, ("", 0.0))
        now = time.monotonic()
        if what == last_what and done < total and now - last_time < 1.0:
            return
        self._last[name] = (what, now)
        self.line(f"{name}: {what} {done}/{total}")

    def line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def settle(self) -> None:
        self._last.clear()


class RichRenderer:
    """A bar for each child that loads, for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def loading(self, name: str, done: int, total: int, what: str) -> None:
        if self._progress is None:
            columns = (
                TextColumn("{task.fields[child]}: {task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.start()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(what, total=total, child=name)
        self._progress.update(self._tasks[name], completed=done, total=total, description=what)

    def line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def settle(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = None
        self._tasks.clear()


def renderer_for(stream: TextIO) -> Renderer:
    return RichRenderer(Console(file=stream)) if stream.isatty() else PlainRenderer(stream)


class Reporter:
    """Hands everything to the renderer from a thread of its own."""

    def __init__(self, renderer: Renderer | None = None) -> None:
        self._renderer = renderer or renderer_for(sys.stderr)
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._write, name="report", daemon=True)
        self._thread.start()

    def loading(self, name: str, done: int, total: int, what: str) -> None:
        self._put(lambda: self._renderer.loading(name, done, total, what))

    def line(self, text: str) -> None:
        self._put(lambda: self._renderer.line(text))

    def settle(self) -> None:
        self._put(self._renderer.settle)

    def close(self) -> None:
        """Writes what waits, for at most a second."""
        self.settle()
        self._put(None)
        self._thread.join(_FLUSH_S)

    def _put(self, action: Callable[[], None] | None) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(action)

    def _write(self) -> None:
        while action := self._waiting.get():
            # The reader of stderr is gone, or the disk is full: nowhere is left to say so.
            with contextlib.suppress(OSError, ValueError):
                action()
