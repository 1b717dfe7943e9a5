"""How long steps take, and how long one may take before its executor counts as hung.

Pings are answered below Python and never prove that an executor's loop is alive, so this does.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MIN_ALLOWANCE_S = 5.0
ALLOWANCE_FACTOR = 10.0
WARM_STEPS = 16
"""Answers of one incarnation before the watchdog is on: first steps compile and allocate."""

_SMOOTHING = 0.1
_MAX_OVERRUNS = 6


class StepInFlight(NamedTuple):
    step_id: int
    num_tokens: int
    sent_at: float


class StepClock:
    """Times the steps of one executor. All times are on the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._in_flight: deque[StepInFlight] = deque()
        self._last_answer_at = 0.0
        self._num_answers = 0
        self._step_s = 0.0
        self._token_s = 0.0
        self.num_overruns = 0
        """Times the watchdog fired since the last answer."""

    def sent(self, step_id: int, num_tokens: int, now: float) -> None:
        self._in_flight.append(StepInFlight(step_id, num_tokens, now))

    def answered(self, step_id: int, now: float) -> float | None:
        """The round trip of that step; None if it is not in flight."""
        while self._in_flight and self._in_flight[0].step_id < step_id:
            self._in_flight.popleft()
        if not self._in_flight or self._in_flight[0].step_id != step_id:
            return None
        step = self._in_flight.popleft()
        # Steps run one after the other: a step sent ahead starts when the one before it ended.
        took_s = now - max(step.sent_at, self._last_answer_at)
        self._last_answer_at = now
        self.num_overruns = 0
        self._learn(took_s, step.num_tokens)
        return now - step.sent_at

    def _learn(self, took_s: float, num_tokens: int) -> None:
        self._num_answers += 1
        weight = max(_SMOOTHING, 1.0 / self._num_answers)
        self._step_s += weight * (took_s - self._step_s)
        self._token_s += weight * (took_s / max(1, num_tokens) - self._token_s)

    def predict_s(self, num_tokens: int) -> float:
        """Of a step with so many tokens; on the long side, as a hung executor is rare."""
        return max(self._step_s, self._token_s * num_tokens)

    @property
    def deadline(self) -> float | None:
        """When the oldest step in flight is overdue; None while nothing is, or not warm yet."""
        if not self._in_flight or self._num_answers < WARM_STEPS:
            return None
        oldest = self._in_flight[0]
        allowance_s = max(MIN_ALLOWANCE_S, ALLOWANCE_FACTOR * self.predict_s(oldest.num_tokens))
        return max(oldest.sent_at, self._last_answer_at) + allowance_s * 2.0**self.num_overruns

    def stream_ended(self) -> None:
        """Nothing is in flight any more."""
        self._in_flight.clear()

    def overran(self) -> None:
        """The watchdog fired. A step that is only slow must not be voided at the same point for
        ever, so the allowance doubles until an answer comes."""
        self.num_overruns = min(self.num_overruns + 1, _MAX_OVERRUNS)

    def restarted(self) -> None:
        """Another incarnation: not warm."""
        self._in_flight.clear()
        self._num_answers = 0
        self.num_overruns = 0
