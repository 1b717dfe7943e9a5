from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from tests.bench.serving.peers.contest import Contest, reason_of, rotated
from tests.bench.serving.peers.contestant import Run, Unavailable, WeightClass
from tests.bench.serving.sse_client import ServerFailed
from tests.bench.serving.timeline import Outcome, Timeline
from tests.bench.serving.workloads import Ask, Workload

WARM_UP = Workload(name="warm-up", asks=(Ask(prompt=(1,), num_outputs=1),), concurrency=1)
W = Workload(name="W", asks=(Ask(prompt=(1, 2), num_outputs=2),), concurrency=1)


@dataclass
class Fake:
    """Answers, or fails by what it is given: at the start, or at a workload."""

    name: str
    order: list[str]
    start_error: Exception | None = None
    run_error: Exception | None = None
    ran: list[str] = field(default_factory=list)
    weight_class: WeightClass = WeightClass.QUANTIZED

    @contextlib.contextmanager
    def started(self, threads: int) -> Iterator[Run]:
        self.order.append(self.name)
        if self.start_error:
            raise self.start_error
        yield self._run

    def _run(self, workload: Workload) -> Outcome:
        self.ran.append(workload.name)
        if self.run_error and workload is not WARM_UP:
            raise self.run_error
        return Outcome(answers=[Timeline(0.0, [1.0, 2.0], [3, 4])])


def contest(*contestants: Fake) -> Contest:
    log = Console(file=io.StringIO())
    return Contest(
        contestants=contestants, workloads=[W], warm_up=WARM_UP, threads=1, log=log, settle_s=0.0
    )


def test_everybody_warms_up_and_takes_every_workload_once_a_round() -> None:
    order: list[str] = []
    first, second = Fake("a", order), Fake("b", order)
    held = contest(first, second)
    held.run_round(0)
    held.run_round(1)
    assert first.ran == second.ran == ["warm-up", "W", "warm-up", "W"]
    assert order == ["a", "b", "b", "a"]
    assert [(e.round, e.name) for e in held.entries] == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


@pytest.mark.parametrize(
    "failing",
    [
        Fake("a", [], start_error=Unavailable("not installed")),
        Fake("a", [], run_error=ExceptionGroup("", [ServerFailed("not installed")])),
    ],
)
def test_one_that_fails_is_named_and_left_out_and_the_others_go_on(failing: Fake) -> None:
    other = Fake("b", [])
    held = contest(failing, other)
    held.run_round(0)
    held.run_round(1)
    assert held.out == {"a": "not installed"}
    assert failing.ran.count("W") <= 1
    assert [entry.name for entry in held.entries] == ["b", "b"]


def test_what_is_no_failure_of_a_contestant_ends_the_contest() -> None:
    mixed = ExceptionGroup("", [ServerFailed("x"), KeyError("y")])
    with pytest.raises(ExceptionGroup):
        contest(Fake("a", [], run_error=mixed)).run_round(0)


def test_the_reason_is_the_innermost() -> None:
    inner = ExceptionGroup("", [ServerFailed("503")])
    assert reason_of(ExceptionGroup("", [inner])) == "503"
    assert reason_of(TimeoutError()) == "TimeoutError"


def test_another_goes_first_in_each_round() -> None:
    fakes = [Fake(name, []) for name in "abc"]
    orders = ["".join(fake.name for fake in rotated(fakes, number)) for number in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]
