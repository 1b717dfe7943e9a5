"""The watchdog's clock."""

from __future__ import annotations

import pytest

from scheduler_service.engine.step_clock import MIN_ALLOWANCE_S, WARM_STEPS, StepClock


def warm_clock(*, took_s: float, num_tokens: int = 1) -> tuple[StepClock, float]:
    """A clock that has seen enough steps, and the time it is."""
    clock, now = StepClock(), 100.0
    for step_id in range(WARM_STEPS):
        clock.sent(step_id, num_tokens, now)
        now += took_s
        clock.answered(step_id, now)
    return clock, now


def test_there_is_no_deadline_before_it_is_warm() -> None:
    clock = StepClock()
    for step_id in range(WARM_STEPS - 1):
        clock.sent(step_id, 1, 0.0)
        clock.answered(step_id, 1.0)
    clock.sent(WARM_STEPS, 1, 2.0)
    assert clock.deadline is None


def test_there_is_no_deadline_while_nothing_is_in_flight() -> None:
    clock, _ = warm_clock(took_s=0.01)
    assert clock.deadline is None


def test_fast_steps_get_the_least_allowance() -> None:
    clock, now = warm_clock(took_s=0.01)
    clock.sent(99, 1, now)
    assert clock.deadline == pytest.approx(now + MIN_ALLOWANCE_S)


def test_the_allowance_grows_with_the_tokens_of_the_very_plan() -> None:
    clock, now = warm_clock(took_s=0.1, num_tokens=1)
    clock.sent(99, 512, now)
    assert clock.deadline == pytest.approx(now + 10 * 0.1 * 512, rel=0.01)


def test_a_step_sent_ahead_is_timed_from_the_answer_before_it() -> None:
    clock, now = warm_clock(took_s=0.01)
    clock.sent(50, 1, now)
    clock.sent(51, 1, now)
    clock.answered(50, now + 4.0)
    allowance_s = max(MIN_ALLOWANCE_S, 10 * clock.predict_s(1))
    assert clock.deadline == pytest.approx(now + 4.0 + allowance_s)


def test_the_round_trip_is_of_that_step_alone() -> None:
    clock = StepClock()
    clock.sent(1, 1, 10.0)
    clock.sent(2, 1, 10.5)
    assert clock.answered(1, 11.0) == pytest.approx(1.0)
    assert clock.answered(2, 11.2) == pytest.approx(0.7)
    assert clock.answered(2, 11.3) is None


def test_an_overrun_doubles_the_allowance_until_an_answer_comes() -> None:
    clock, now = warm_clock(took_s=0.01)
    clock.overran()
    clock.sent(99, 1, now)
    assert clock.deadline == pytest.approx(now + 2 * MIN_ALLOWANCE_S)
    clock.answered(99, now + 6.0)
    clock.sent(100, 1, now + 6.0)
    assert clock.deadline == pytest.approx(now + 6.0 + max(5.0, 10 * clock.predict_s(1)))


def test_another_incarnation_has_to_warm_up_again() -> None:
    clock, now = warm_clock(took_s=0.01)
    clock.restarted()
    clock.sent(99, 1, now)
    assert clock.deadline is None
