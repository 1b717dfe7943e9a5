"""Who is admitted first, and who gives way. A policy decides order; it never touches state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from scheduler_service.core.sequence import Sequence

OrderKey = tuple[int, ...]


class SchedulingPolicy(Protocol):
    def order(self, sequence: Sequence) -> OrderKey:
        """Lower is served first. Must not change while the sequence waits; unique per sequence."""
        ...

    def victim(self, candidates: Iterable[Sequence], needy: Sequence) -> Sequence | None:
        """Which candidate is preempted for a block `needy` wants; None: none gives way to it."""
        ...


class Fcfs:
    """First come, first served; the newest gives way, and only to an older one."""

    def order(self, sequence: Sequence) -> OrderKey:
        return sequence.arrival, sequence.spec.index

    def victim(self, candidates: Iterable[Sequence], needy: Sequence) -> Sequence | None:
        newest = max(candidates, key=self.order, default=None)
        if newest is None or self.order(newest) < self.order(needy):
            return None
        return newest


POLICIES: Mapping[str, Callable[[], SchedulingPolicy]] = {"fcfs": Fcfs}
"""By the name that --scheduling-policy takes."""
