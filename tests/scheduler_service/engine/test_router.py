"""Which core takes a request."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_service.core.request import Request
from scheduler_service.engine.router import rank
from tests.support.builders import make_request

REQUEST = make_request("r", [1, 2, 3])


@dataclass(eq=False)
class Place:
    cached: int
    num_sequences: int
    num_questions: int = 0

    @property
    def core(self) -> Place:
        return self

    def match_length(self, request: Request) -> int:
        self.num_questions += 1
        return self.cached


def test_the_longest_cached_prefix_wins() -> None:
    busy, idle = Place(cached=32, num_sequences=90), Place(cached=16, num_sequences=0)
    assert rank([idle, busy], REQUEST) == [busy, idle]


def test_among_equals_the_least_loaded_wins() -> None:
    busy, idle = Place(cached=16, num_sequences=9), Place(cached=16, num_sequences=3)
    assert rank([busy, idle], REQUEST) == [idle, busy]


def test_a_single_core_is_not_asked() -> None:
    only = Place(cached=0, num_sequences=0)
    assert rank([only], REQUEST) == [only]
    assert only.num_questions == 0
