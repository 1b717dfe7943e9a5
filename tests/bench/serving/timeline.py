"""When the tokens of each answer came, and the figures made of that."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

UNITS = {
    "output_rate": "tokens/s",
    "ttft_p50": "s",
    "ttft_p99": "s",
    "tpot_p50": "ms",
    "tpot_p99": "ms",
    "itl_before_p50": "ms",
    "itl_before_p99": "ms",
    "itl_during_p50": "ms",
    "itl_during_max": "ms",
    "late_ttft": "s",
}
"""Every metric there is. TPOT is (last - first) / (tokens - 1) of one answer; ITL, inter-token
latency, the wait between two tokens of it. W4: before and during the late prompt's wait."""


@dataclass(slots=True, eq=False)
class Timeline:
    """One request. Times are seconds on one clock."""

    issued_at: float
    arrivals: list[float] = field(default_factory=list)
    """One per token."""
    tokens: list[int] = field(default_factory=list)

    @property
    def first_at(self) -> float:
        return self.arrivals[0]

    @property
    def last_at(self) -> float:
        return self.arrivals[-1]

    def intervals(self) -> Iterable[tuple[float, float]]:
        """From token to token."""
        return itertools.pairwise(self.arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One side's pass over one workload."""

    answers: Sequence[Timeline]
    """In the workload's order."""
    late: Timeline | None = None


def measure(outcome: Outcome) -> dict[str, float]:
    """By metric; keys are some of UNITS."""
    figures = {"output_rate": _output_rate(outcome)}
    waits = [answer.first_at - answer.issued_at for answer in outcome.answers]
    paces = [
        (answer.last_at - answer.first_at) / (len(answer.arrivals) - 1) * 1e3
        for answer in outcome.answers
        if len(answer.arrivals) > 1
    ]
    figures |= {"ttft_p50": percentile(waits, 50), "ttft_p99": percentile(waits, 99)}
    figures |= {"tpot_p50": percentile(paces, 50), "tpot_p99": percentile(paces, 99)}
    if outcome.late is not None:
        figures |= _interrupted(outcome.answers, outcome.late)
    return figures


def _output_rate(outcome: Outcome) -> float:
    """Of everything, from the first request sent to the last token received."""
    every = [*outcome.answers, *([outcome.late] if outcome.late else [])]
    took_s = max(t.last_at for t in every) - min(t.issued_at for t in every)
    return sum(len(t.arrivals) for t in every) / took_s


def _interrupted(answers: Sequence[Timeline], late: Timeline) -> dict[str, float]:
    """An interval that reaches into the late prompt's wait counts as during."""
    settled_at = max(answer.first_at for answer in answers)

    def selected(wanted: Callable[[float, float], bool]) -> list[float]:
        pairs = (pair for answer in answers for pair in answer.intervals())
        return [(end - start) * 1e3 for start, end in pairs if wanted(start, end)]

    before = selected(lambda start, end: start >= settled_at and end <= late.issued_at)
    during = selected(lambda start, end: start < late.first_at and end > late.issued_at)
    return {
        "itl_before_p50": percentile(before, 50),
        "itl_before_p99": percentile(before, 99),
        "itl_during_p50": percentile(during, 50),
        "itl_during_max": max(during),
        "late_ttft": late.first_at - late.issued_at,
    }


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
