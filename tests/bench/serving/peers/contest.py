"""Rounds: in each, everybody is started once and takes every workload once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from tests.bench.serving.noise import SETTLE_S, NoiseWatch
from tests.bench.serving.peers.contestant import Contestant, Run, Unavailable
from tests.bench.serving.sse_client import ServerFailed
from tests.bench.serving.summary import Sample
from tests.bench.serving.timeline import measure
from tests.bench.serving.workloads import Workload

FAILURES = (Unavailable, ServerFailed, TimeoutError, OSError, EOFError)
"""What a contestant can do wrong, alone or in a group, without ending the contest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One pass."""

    round: int
    case: str
    name: str
    sample: Sample


@dataclass(slots=True, eq=False)
class Contest:
    contestants: Sequence[Contestant]
    workloads: Sequence[Workload]
    warm_up: Workload
    threads: int
    log: Console
    settle_s: float = SETTLE_S
    entries: list[Entry] = field(default_factory=list)
    out: dict[str, str] = field(default_factory=dict)
    """Why, by name. Who is out is not started again; what it did before counts."""

    def run_round(self, number: int) -> None:
        for contestant in rotated(self.contestants, number):
            if contestant.name in self.out:
                continue
            try:
                with contestant.started(self.threads) as run:
                    run(self.warm_up)
                    for workload in self.workloads:
                        self._take(contestant.name, run, workload, number)
            except (*FAILURES, ExceptionGroup) as error:
                self._leave_out(contestant.name, reason_of(error))

    def _take(self, name: str, run: Run, workload: Workload, number: int) -> None:
        watch = NoiseWatch(self.settle_s)
        outcome = run(workload)
        noise = watch.stop()
        sample = Sample(figures=measure(outcome), noise=noise, outcome=outcome)
        self.entries.append(Entry(round=number, case=workload.name, name=name, sample=sample))
        self.log.print(
            f"{workload.name} {name}: {sample.figures['output_rate']:.1f} tokens/s"
            f" (others {noise.foreign:.0%} of the machine, sgemm {noise.probe_gflops:.0f} GFLOP/s)",
            highlight=False,
        )

    def _leave_out(self, name: str, reason: str) -> None:
        self.out[name] = reason
        self.log.print(f"{name} is left out: {reason}", highlight=False)


def rotated(contestants: Sequence[Contestant], number: int) -> Iterator[Contestant]:
    """Another one goes first in each round."""
    first = number % len(contestants)
    yield from contestants[first:]
    yield from contestants[:first]


def reason_of(error: Exception) -> str:
    """Of a group, its first one's. What is no failure of a contestant is raised again."""
    if isinstance(error, ExceptionGroup):
        failures, others = error.split(FAILURES)
        if others is not None or failures is None:
            raise error
        return reason_of(failures.exceptions[0])
    return str(error) or type(error).__name__
