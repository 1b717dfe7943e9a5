"""When a dead child is started again, and when it is given up."""

from __future__ import annotations


class Restarts:
    """Counts one child's deaths in a row. Doubling pauses; a long life wipes the slate."""

    def __init__(
        self,
        *,
        max_in_a_row: int = 6,
        first_pause_s: float = 0.5,
        max_pause_s: float = 10.0,
        long_life_s: float = 60.0,
    ) -> None:
        self._max_in_a_row = max_in_a_row
        self._first_pause_s = first_pause_s
        self._max_pause_s = max_pause_s
        self._long_life_s = long_life_s
        self.in_a_row = 0

    def died(self, life_s: float) -> float | None:
        """The pause before the next start in seconds; None: it has died too often."""
        if life_s >= self._long_life_s:
            self.in_a_row = 0
        self.in_a_row += 1
        if self.in_a_row > self._max_in_a_row:
            return None
        return min(self._max_pause_s, self._first_pause_s * 2.0 ** (self.in_a_row - 1))
