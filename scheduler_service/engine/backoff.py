"""Waiting times between tries to reach an executor again."""

from __future__ import annotations

import random

FIRST_S = 0.05
LONGEST_S = 5.0


class Backoff:
    """The first try is at once; later waits double up to 5 s, jittered so that schedulers that
    lost the same executor do not all return in the same instant."""

    def __init__(self) -> None:
        self._num_failures = 0

    def next_s(self) -> float:
        failures, self._num_failures = self._num_failures, self._num_failures + 1
        if failures == 0:
            return 0.0
        return min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 16)) * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._num_failures = 0
