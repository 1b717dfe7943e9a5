from __future__ import annotations

from tests.bench.serving.static_batches import batch_sizes, issue, length_sorted
from tests.bench.serving.timeline import Timeline
from tests.bench.serving.workloads import WORKLOADS, Ask


def asks(*num_outputs: int) -> list[Ask]:
    return [Ask(prompt=(1,), num_outputs=count) for count in num_outputs]


def test_batches_hold_neighbours_in_length_and_every_request_once() -> None:
    assert length_sorted(asks(3, 9, 1, 7, 5), 2) == [[1, 3], [4, 0], [2]]
    batches = length_sorted(WORKLOADS["W1"]().asks, 16)
    assert sorted(index for batch in batches for index in batch) == list(range(32))


def test_no_batch_is_larger_than_what_is_in_progress() -> None:
    assert batch_sizes(16) == [16, 8, 4]
    assert batch_sizes(1) == [1]


def test_a_request_is_sent_when_an_earlier_one_has_ended() -> None:
    # Two at a time in batches of two; the second batch runs from 5 on.
    answers = [Timeline(0.0, [1.0, ended_at]) for ended_at in (3.0, 5.0, 7.0, 9.0)]
    issue(answers, [[0, 1], [2, 3]], concurrency=2)
    assert [answer.issued_at for answer in answers] == [0.0, 0.0, 3.0, 5.0]


def test_requests_in_progress_wait_for_the_batches_before_theirs() -> None:
    answers = [Timeline(0.0, [ended_at]) for ended_at in (1.0, 2.0, 3.0, 4.0)]
    issue(answers, [[0], [1], [2], [3]], concurrency=3)
    assert [answer.issued_at for answer in answers] == [0.0, 0.0, 0.0, 1.0]
