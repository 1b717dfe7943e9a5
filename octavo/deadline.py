"""A budget of time over several tries."""

from __future__ import annotations

import time

from common.errors import DeadlineError


class Deadline:
    """Counts from its making on the monotonic clock; None never passes."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        """For the next call's timeout; never below zero."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def require(self, pause_s: float) -> None:
        """DeadlineError when it would pass during a pause of so many seconds."""
        left_s = self.left_s()
        if left_s is not None and left_s <= pause_s:
            raise DeadlineError("the timeout passed before the server could be reached again")
