"""Wall times of which only those count that waited little for a core.

Neighbours on the machine otherwise decide the figure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

_MAX_WAIT = 0.05


class Samples:
    """Times of one thing, in ms."""

    def __init__(self) -> None:
        self._clean: list[float] = []
        self._every: list[float] = []

    @property
    def count(self) -> int:
        return len(self._every)

    def take(self, run: Callable[[], object]) -> None:
        waited, started = _waited_ns(), time.perf_counter_ns()
        run()
        took = time.perf_counter_ns() - started
        self._every.append(took / 1e6)
        if _waited_ns() - waited < _MAX_WAIT * took:
            self._clean.append(took / 1e6)

    @property
    def typical(self) -> float:
        """The median of the clean ones; without any, the least of all."""
        return statistics.median(self._clean) if self._clean else min(self._every)

    def __str__(self) -> str:
        if self._clean:
            return f"{self.typical:8.1f} ms  ({len(self._clean)} samples)"
        return f"[{self.typical:7.1f} ms]  (no clean sample of {len(self._every)})"


def _waited_ns() -> int:
    """Time that this process's threads stood ready without a core."""
    total = 0
    for thread in Path("/proc/self/task").iterdir():
        try:
            total += int((thread / "schedstat").read_text().split()[1])
        except OSError:  # the thread has ended
            continue
    return total
