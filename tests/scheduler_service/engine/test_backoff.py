"""Waiting between tries."""

from __future__ import annotations

from collections import Counter

from scheduler_service.engine.backoff import FIRST_S, LONGEST_S, Backoff


def test_the_first_try_is_at_once_and_no_wait_is_longer_than_five_seconds() -> None:
    backoff = Backoff()
    waits = [backoff.next_s() for _ in range(200)]
    assert waits[0] == 0.0
    assert all(0.0 < wait <= LONGEST_S for wait in waits[1:])
    assert waits[1] <= FIRST_S
    assert LONGEST_S == 5.0


def test_waits_grow_and_a_success_begins_anew() -> None:
    backoff = Backoff()
    waits = [backoff.next_s() for _ in range(10)]
    assert waits[9] > 8 * waits[1]
    backoff.reset()
    assert backoff.next_s() == 0.0


def test_two_schedulers_do_not_wait_in_step() -> None:
    one, other = Backoff(), Backoff()
    assert [one.next_s() for _ in range(9)] != [other.next_s() for _ in range(9)]


def test_c82_after_an_outage_schedulers_return_soon_and_not_at_once() -> None:
    """Two thousand lose the same executor at once; it is back after 30 s."""
    returns = []
    for _ in range(2000):
        backoff, now = Backoff(), 0.0
        while now < 30.0:
            now += backoff.next_s() + 0.001  # a refused try takes no longer
        returns.append(now - 30.0)
    assert max(returns) <= LONGEST_S + 1.0
    per_second = Counter(int(after_s) for after_s in returns)
    assert max(per_second.values()) <= 0.3 * len(returns), per_second
