"""The loop's next deadline."""

from __future__ import annotations

from scheduler_service.engine.deadlines import Deadlines


def test_the_earliest_is_next_and_due_ones_are_forgotten() -> None:
    deadlines = Deadlines()
    for at in (5.0, 3.0, 4.0):
        deadlines.add(at, f"r{at}")
    assert deadlines.next == 3.0
    assert not deadlines.pop_due(2.9)
    assert deadlines.pop_due(4.0)
    assert deadlines.next == 5.0
    assert deadlines.pop_due(9.0)
    assert deadlines.next is None


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    deadlines = Deadlines()
    live = {"long"}
    deadlines.add(1e9, "long")
    for number in range(10_000):
        deadlines.add(1e6 + number, f"short-{number}")
        deadlines.sweep(live, len(live))
    assert len(deadlines) < 100
    deadlines.pop_due(1e8)
    assert deadlines.next == 1e9
