from __future__ import annotations

from array import array

from scheduler_service.core.events import SequenceKey
from scheduler_service.core.policy import Fcfs
from scheduler_service.core.sequence import Sequence
from tests.support.builders import make_request
from tests.support.plans import make_spec


def _sequence(arrival: int, index: int = 0) -> Sequence:
    return Sequence(
        spec=make_spec(arrival * 10 + index, 1, index=index),
        request=make_request(str(arrival), [1]),
        key=SequenceKey(str(arrival), index),
        arrival=arrival,
        tokens=array("i", [1]),
        max_len=5,
        end_token_ids=frozenset(),
    )


def test_fcfs_serves_by_arrival_and_choices_in_order() -> None:
    sequences = [_sequence(2), _sequence(1, 1), _sequence(1), _sequence(0)]
    ordered = sorted(sequences, key=Fcfs().order)
    assert [(s.arrival, s.spec.index) for s in ordered] == [(0, 0), (1, 0), (1, 1), (2, 0)]


def test_fcfs_preempts_the_newest_and_never_for_a_newer_one() -> None:
    oldest, middle, newest = (_sequence(i) for i in range(3))
    policy = Fcfs()
    assert policy.victim([newest, oldest, middle], oldest) is newest
    assert policy.victim([oldest, middle], newest) is None
    assert policy.victim([], oldest) is None
