from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console

from tests.bench.serving.peers.contestant import Run, Unavailable, WeightClass
from tests.bench.serving.peers.first_start import start_each
from tests.bench.serving.timeline import Outcome
from tests.bench.serving.workloads import Workload


@dataclass
class Peer:
    name: str
    error: str = ""
    asked: list[str] = field(default_factory=list)
    weight_class: WeightClass = WeightClass.FLOAT32

    @contextlib.contextmanager
    def started(self, threads: int) -> Iterator[Run]:
        if self.error:
            raise Unavailable(self.error)
        yield self._run

    def _run(self, workload: Workload) -> Outcome:
        self.asked.append(workload.name)
        return Outcome(answers=[])


def test_everybody_answers_the_warm_up_and_nothing_else() -> None:
    peers = [Peer("a"), Peer("b")]
    assert start_each(peers, Console(file=io.StringIO())) == 0
    assert [peer.asked for peer in peers] == [["warm-up"], ["warm-up"]]


def test_one_that_does_not_start_fails_it_all_and_the_log_says_why() -> None:
    out = io.StringIO()
    peers = [Peer("a", error="no such instruction"), Peer("b")]
    assert start_each(peers, Console(file=out)) == 1
    assert "a is left out: no such instruction" in out.getvalue()
    assert peers[1].asked == ["warm-up"]


def test_a_name_that_nobody_has_is_no_success() -> None:
    assert start_each([], Console(file=io.StringIO())) == 1
