"""When the next deadline of a request passes."""

from __future__ import annotations

import heapq
from collections.abc import Container

_SLACK = 64


class Deadlines:
    """A heap that requests leave lazily: one that ended costs a spurious look when its time comes.

    Ended requests are swept out once they may be the majority, so memory follows the live ones.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, request_id: str) -> None:
        heapq.heappush(self._heap, (deadline, request_id))

    @property
    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> bool:
        """Forgets deadlines up to `now`; whether there were any."""
        any_due = False
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)
            any_due = True
        return any_due

    def sweep(self, live: Container[str], num_live: int) -> None:
        if len(self._heap) > 2 * num_live + _SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapq.heapify(self._heap)
