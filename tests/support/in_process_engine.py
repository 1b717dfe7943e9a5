"""The real core, codec and model runner joined in one process, without gRPC or clocks.

It stands in for the step loop: what is planned, encoded, decoded, run and applied is the product's;
only the sockets between are left out. At depth 2 plan s + 1 is made, sent and run before result s
is applied, which is the order the services keep when the device never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.codec import PlanDecoder, PlanEncoder, decode_result, encode_result
from common.plan import StepPlan, StepResult
from proto import executor_pb2
from scheduler_service.core import invariants
from scheduler_service.core.events import SequenceFinished, SequenceKey
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.policy import Fcfs
from scheduler_service.core.request import PriorOutput, Request
from scheduler_service.core.scheduler import Scheduler

_INCARNATION = 0x0C7A
_EPOCH = 1


class Runner(Protocol):
    """The part of a ModelRunner that runs steps; scripted runners have it too."""

    def execute(self, plan: StepPlan) -> StepResult: ...

    def forget_samples(self) -> None: ...


@dataclass(slots=True)
class Collected:
    """All that came out for one choice."""

    token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    finished: SequenceFinished | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and the turn of the loop before which it is added."""

    turn: int
    request: Request
    outputs: tuple[PriorOutput, ...] = ()


class InProcessEngine:
    def __init__(self, limits: SchedulerLimits, runner: Runner, *, max_rows: int = 256) -> None:
        self.scheduler = Scheduler(limits, Fcfs())
        self.choices: dict[SequenceKey, Collected] = {}
        self.num_turns = 0
        self.most_in_flight = 0
        self._runner = runner
        self._encoder = PlanEncoder(max_rows)
        self._max_rows = max_rows
        self._decoder = self._new_decoder()
        self._results: deque[StepResult] = deque()
        runner.forget_samples()

    def add(self, request: Request, outputs: Sequence[PriorOutput] = ()) -> None:
        self.scheduler.add(request, outputs)

    def run(
        self,
        arrivals: Sequence[Arrival],
        *,
        preempt_every: int | None = None,
        max_turns: int = 100_000,
    ) -> None:
        """Turns until everything that arrives has ended.

        Every so many turns the newest running sequence is preempted, for no need at all.
        """
        waiting = deque(sorted(arrivals, key=lambda arrival: arrival.turn))
        first_turn = self.num_turns
        while waiting or self.scheduler.has_work:
            while waiting and waiting[0].turn <= self.num_turns - first_turn:
                arrival = waiting.popleft()
                self.add(arrival.request, arrival.outputs)
            if preempt_every is not None and self.num_turns % preempt_every == 0:
                self._preempt_newest()
            self.turn()
            if self.num_turns - first_turn > max_turns:
                raise AssertionError(f"no end after {max_turns} turns")

    def turn(self) -> None:
        """Plans and runs as far ahead as depth allows, then applies the oldest result."""
        self.num_turns += 1
        while (plan := self.scheduler.schedule()) is not None:
            self._results.append(self._run_over_the_wire(plan))
            self.most_in_flight = max(self.most_in_flight, len(self._results))
            invariants.check(self.scheduler)
        if self._results:
            self.scheduler.apply(self._results.popleft())
        invariants.check(self.scheduler)
        self._collect()

    def break_stream(self) -> None:
        """The stream ends with steps in flight: they are void, both memories are gone."""
        self._results.clear()
        self._encoder.reset()
        self._decoder = self._new_decoder()
        self._runner.forget_samples()
        self.scheduler.void_steps()

    def _preempt_newest(self) -> None:
        running = self.scheduler.state.running
        if len(running) > 1:
            self.scheduler.preempt(max(running))

    def _new_decoder(self) -> PlanDecoder:
        return PlanDecoder(self._max_rows, incarnation=_INCARNATION, epoch=_EPOCH)

    def _run_over_the_wire(self, plan: StepPlan) -> StepResult:
        message = self._encoder.encode(plan, incarnation=_INCARNATION, epoch=_EPOCH)
        received = executor_pb2.StepMessage.FromString(message.SerializeToString())
        result = self._runner.execute(self._decoder.decode(received))
        answer = encode_result(result, incarnation=_INCARNATION, epoch=_EPOCH)
        return decode_result(executor_pb2.StepResult.FromString(answer.SerializeToString()))

    def _collect(self) -> None:
        events = self.scheduler.take_events()
        for admitted in events.admitted:
            self._choice(admitted.key).num_cached_tokens = admitted.num_cached_tokens
        for key, token in zip(events.keys, events.tokens, strict=True):
            choice = self._choice(key)
            assert choice.finished is None, f"{key} got a token after its end"
            choice.token_ids.append(token)
        for finished in events.finished:
            choice = self._choice(finished.key)
            assert choice.finished is None, f"{finished.key} ended twice"
            choice.finished = finished

    def _choice(self, key: SequenceKey) -> Collected:
        return self.choices.setdefault(key, Collected())
