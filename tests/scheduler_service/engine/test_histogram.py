"""The loop's own histogram."""

from __future__ import annotations

from scheduler_service.engine.histogram import Histogram


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.sum == 10.0
    assert histogram.count == 4


def test_many_equal_values_count_like_single_ones() -> None:
    one, other = Histogram((1.0,)), Histogram((1.0,))
    one.observe(0.25, 64)
    for _ in range(64):
        other.observe(0.25)
    assert one.buckets() == other.buckets()
    assert one.sum == other.sum
