from __future__ import annotations

from octavo.stack.restarts import Restarts


def test_pauses_double_up_to_a_bound_and_deaths_in_a_row_are_limited() -> None:
    restarts = Restarts(max_in_a_row=4, first_pause_s=1.0, max_pause_s=3.0)
    assert [restarts.died(0.1) for _ in range(5)] == [1.0, 2.0, 3.0, 3.0, None]


def test_a_long_life_wipes_the_slate() -> None:
    restarts = Restarts(max_in_a_row=2, first_pause_s=1.0, long_life_s=60.0)
    assert [restarts.died(life) for life in (1, 1, 61, 1, 1)] == [1.0, 2.0, 1.0, 2.0, None]
