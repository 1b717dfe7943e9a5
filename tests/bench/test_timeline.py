from __future__ import annotations

import pytest

from tests.bench.serving.timeline import UNITS, Outcome, Timeline, measure, percentile


def answer(issued_at: float, *arrivals: float) -> Timeline:
    return Timeline(issued_at, list(arrivals), list(range(len(arrivals))))


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0], 100) == 3.0
    assert percentile([1.0, 2.0, 3.0], 0) == 1.0
    assert percentile(range(101), 99) == 99
    assert percentile([7.0], 99) == 7.0


def test_figures_of_two_answers() -> None:
    outcome = Outcome(answers=[answer(10.0, 11.0, 12.0, 13.0), answer(10.0, 13.0, 13.5)])
    figures = measure(outcome)
    assert figures["output_rate"] == pytest.approx(5 / 3.5)
    assert figures["ttft_p50"] == pytest.approx(2.0)
    assert figures["tpot_p50"] == pytest.approx(750.0)
    assert figures["tpot_p99"] == pytest.approx(995.0)
    assert figures.keys() < UNITS.keys()


def test_an_answer_of_one_token_has_no_pace() -> None:
    figures = measure(Outcome(answers=[answer(0.0, 1.0), answer(0.0, 1.0, 1.25)]))
    assert figures["tpot_p50"] == pytest.approx(250.0)


def test_a_stall_counts_as_during_also_where_it_began_before() -> None:
    stream = answer(0.0, 1.0, 1.1, 1.2, 3.2, 3.3, 3.4)
    late = answer(1.25, 3.25, 3.3)
    figures = measure(Outcome(answers=[stream], late=late))
    assert figures["itl_before_p50"] == pytest.approx(100.0)
    assert figures["itl_before_p99"] == pytest.approx(100.0)
    assert figures["itl_during_max"] == pytest.approx(2000.0)
    assert figures["itl_during_p50"] == pytest.approx(1050.0)
    assert figures["late_ttft"] == pytest.approx(2.0)
    assert figures["output_rate"] == pytest.approx(8 / 3.4)


def test_before_begins_when_every_stream_has_begun() -> None:
    early = answer(0.0, 1.0, 2.0, 2.1, 2.2, 2.3)
    slow = answer(0.0, 2.0, 2.1, 2.2, 2.3)
    figures = measure(Outcome(answers=[early, slow], late=answer(2.2, 2.25)))
    assert figures["itl_before_p99"] == pytest.approx(100.0)
