"""Figures as they come: printed at once, kept for the file."""

from __future__ import annotations

import time
from pathlib import Path

from tests.bench.records import Record, write_records


class Rows:
    """`seconds`: how long the whole run may take; sections that would take longer are left out."""

    def __init__(self, path: Path | None, seconds: float) -> None:
        self._path = path
        self._ends_at = time.perf_counter() + seconds
        self.records: list[Record] = []

    @property
    def seconds_left(self) -> float:
        return self._ends_at - time.perf_counter()

    def add(self, case: str, metric: str, value: float, unit: str, *, goal: str = "") -> None:
        """A figure of ours; `goal` is printed beside it."""
        self._print(case, metric, value, unit, "", goal)
        self._keep(Record(case=case, metric=metric, value=value, unit=unit))

    def compare(
        self,
        case: str,
        metric: str,
        ours: float,
        unit: str,
        *,
        peer: str,
        theirs: float,
        goal: str = "",
    ) -> None:
        """A figure of ours that was added, beside a peer's or the card's own."""
        ratio = ours / theirs
        self._print(case, metric, theirs, unit, f"{peer}; ours is {ratio:.3f} of it", goal)
        self._keep(
            Record(case=case, metric=metric, value=theirs, unit=unit, peer=peer, ratio=ratio)
        )

    def say(self, line: str) -> None:
        print(line, flush=True)

    def _print(
        self, case: str, metric: str, value: float, unit: str, against: str, goal: str
    ) -> None:
        figure = f"{value:12,.4g} {unit:9}"
        goal = goal and f"(goal {goal})"
        self.say(f"{case:56} {metric:15} {figure} {against} {goal}".rstrip())

    def _keep(self, record: Record) -> None:
        self.records.append(record)
        if self._path is not None:
            write_records(self._path, self.records)
