"""One scheduler, one shadow executor, and the wire between them reduced to two queues.

Nothing happens by itself: each method is one event, after which the invariants hold and every
output is checked. A step passes through `plan`, `execute` and `deliver`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from common.plan import (
    BlockId,
    ErrorCode,
    SequenceChunk,
    SequenceId,
    SequenceSpec,
    StepPlan,
    StepResult,
)
from scheduler_service.core import invariants
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.intake import QueueFullError
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.policy import Fcfs
from scheduler_service.core.request import FinishReason, PriorOutput, RefusedError, Request
from scheduler_service.core.scheduler import Scheduler
from tests.simulation.ledger import Choice, Ledger
from tests.simulation.wire import DirectWire, Wire
from tests.support.shadow_executor import ShadowExecutor
from tests.support.shadow_model import ShadowModel

ROOT_SHIFT = 32
"""A request's cache root, as a number, is in its seed from this bit on."""


def root_of(spec: SequenceSpec) -> int:
    return spec.params.seed >> ROOT_SHIFT


@dataclass(slots=True, eq=False)
class InFlight:
    plan: StepPlan
    chunks: list[SequenceChunk]
    """The plan as it was when it was made."""
    result: StepResult | None = None

    @property
    def block_ids(self) -> set[BlockId]:
        """Every block that the step reads, writes or copies."""
        tables = [block for chunk in self.chunks for block in chunk.block_ids]
        copies = [*self.plan.copy_sources, *self.plan.copy_destinations]
        return set(map(BlockId, tables + copies))


class World:
    def __init__(
        self,
        limits: SchedulerLimits,
        model: ShadowModel | None = None,
        wire: Wire | None = None,
    ) -> None:
        self.scheduler = Scheduler(limits, Fcfs())
        self.limits = limits
        self.model = model or ShadowModel(vocab_size=limits.vocab_size)
        self.ledger = Ledger(self.model, limits.max_model_len, limits.block_size)
        self.executor = self._new_executor()
        self.wire = wire or DirectWire()
        self.in_flight: deque[InFlight] = deque()
        self.delivered: deque[StepResult] = deque(maxlen=4)
        self.num_steps = 0
        self.num_refused = 0
        self.moving: list[tuple[Request, tuple[PriorOutput, ...]]] = []
        """Taken from the scheduler's queue and not yet given back."""

    def _new_executor(self) -> ShadowExecutor:
        return ShadowExecutor(
            self.limits.num_blocks, self.limits.block_size, model=self.model, root_of=root_of
        )

    @property
    def num_cached_tokens(self) -> dict[str, int]:
        return self.ledger.num_cached_tokens

    def choices(self) -> list[Choice]:
        return list(self.ledger.choices.values())

    def choice(self, request_id: str, index: int = 0) -> Choice:
        return self.ledger.choices[SequenceKey(request_id, index)]

    def check(self) -> None:
        self._check_invariants()
        self.ledger.take(self.scheduler.take_events())

    def _check_invariants(self) -> None:
        invariants.check(self.scheduler)
        kv = self.scheduler.state.kv
        evictable: set[int] = set()
        nodes = kv.tree.roots()
        for node in nodes:
            nodes.extend(node.children.values())
            if node.num_acquired == 0:
                evictable.update(node.block_ids)
        for flight in self.in_flight:
            lost = [b for b in flight.block_ids if not kv.pool.num_refs(b) or b in evictable]
            assert not lost, f"I5: step {flight.plan.step_id} names {lost}, which may be reused"

    # Requests

    def add(self, request: Request) -> bool:
        """False: the scheduler refused it."""
        try:
            self.scheduler.add(request)
        except RefusedError:
            self.num_refused += 1
            self.check()
            return False
        self.ledger.accept(request, request.params.seed >> ROOT_SHIFT)
        self.check()
        return True

    def abort(self, request_id: str) -> None:
        """Accepted exactly if the scheduler holds a live choice of it."""
        moving = [request.request_id for request, _ in self.moving]
        live = any(c.request.request_id == request_id for c in self.ledger.live())
        accepted = self.scheduler.abort(request_id)
        self._check_invariants()
        if request_id in moving:
            self.ledger.take(self.scheduler.take_events())
            return
        assert accepted == live, f"abort({request_id}) said {accepted}"
        events = self.scheduler.take_events()
        if accepted:
            self.ledger.aborted(request_id, events)
        else:
            self.ledger.take(events)

    def finish(self, sequence_id: SequenceId, num_output_tokens: int) -> None:
        """What the API does when it saw a stop string end at that length."""
        choice = next(
            c for c in self.ledger.live() if self.scheduler.sequence_id_of(c.key) == sequence_id
        )
        choice.asked_end = num_output_tokens
        self.scheduler.finish(sequence_id, num_output_tokens, FinishReason.STOP)
        self.check()
        assert choice.end is not None, f"{choice.key} survived finish"
        assert choice.end.reason is FinishReason.STOP
        assert choice.end.num_output_tokens == num_output_tokens

    def expire(self, now: float) -> None:
        self.scheduler.expire(now)
        self.check()
        late = [
            c.key
            for c in self.ledger.live()
            if c.request.deadline is not None
            and c.request.deadline <= now
            and all(c.request is not request for request, _ in self.moving)
        ]
        assert not late, f"{late} outlived their deadlines"

    def take_waiting(self, limit: int) -> None:
        taken = self.scheduler.take_waiting(limit)
        assert len(taken) <= limit
        for request, _ in taken:
            self.ledger.moved(request.request_id)
        self.moving.extend(taken)
        self.check()

    def give_back(self) -> None:
        """Adds what was taken, as another scheduler would: with the outputs it had. What meets a
        full queue stays here."""
        full: list[tuple[Request, tuple[PriorOutput, ...]]] = []
        for request, outputs in self.moving:
            for output in outputs:
                choice = self.choice(request.request_id, output.index)
                assert list(output.token_ids) == choice.tokens, f"{choice.key} moved wrongly"
            try:
                self.scheduler.add(request, outputs)
            except QueueFullError:
                full.append((request, outputs))
        self.moving[:] = full
        self.check()

    # Steps

    def plan(self) -> bool:
        """False: there is nothing to plan now."""
        plan = self.scheduler.schedule()
        for flight in self.in_flight:
            assert list(flight.plan.chunks()) == flight.chunks, "a sent plan changed"
        self.check()
        if plan is None:
            return False
        assert len(self.in_flight) < self.limits.depth, "more steps in flight than depth allows"
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert plan.num_chunks <= self.limits.max_num_seqs, "more chunks than places"
        self.wire.send(plan)
        self.in_flight.append(InFlight(plan, list(plan.chunks())))
        self.num_steps += 1
        return True

    def execute(self) -> bool:
        """Runs the oldest plan that has not run."""
        flight = next((f for f in self.in_flight if f.result is None), None)
        if flight is None:
            return False
        flight.result = self.executor.execute(self.wire.receive())
        return True

    def deliver(self) -> bool:
        """Applies the oldest result."""
        if not self.in_flight:
            return False
        if self.in_flight[0].result is None:
            self.execute()
        flight = self.in_flight.popleft()
        assert list(flight.plan.chunks()) == flight.chunks, "a sent plan changed"
        assert flight.result is not None
        self.scheduler.apply(flight.result)
        self.delivered.append(flight.result)
        self.check()
        return True

    def fail_next(self, sequence_id: SequenceId, code: ErrorCode = ErrorCode.NON_FINITE) -> None:
        self.executor.fail(sequence_id, code)

    def repeat_result(self, number: int) -> None:
        """A result that was applied before comes again: ignored, and counted."""
        if not self.delivered:
            return
        before = self.scheduler.counters.num_stale_results
        self.scheduler.apply(self.delivered[number % len(self.delivered)])
        assert self.scheduler.counters.num_stale_results == before + 1
        self.check()

    def overtake(self) -> None:
        """The second result comes before the first: it is not what the scheduler waits for, and
        after such a loss only a new stream helps."""
        if len(self.in_flight) < 2:
            return
        while self.execute():
            pass
        before = self.scheduler.counters.num_stale_results
        late = self.in_flight[1].result
        assert late is not None
        self.scheduler.apply(late)
        assert self.scheduler.counters.num_stale_results == before + 1
        self.check()
        self.break_stream(num_run=0)

    def reset_prefix_cache(self) -> None:
        """Empties the tree, if nobody holds any of it."""
        counters = self.scheduler.counters
        if self.scheduler.reset_prefix_cache():
            assert self.scheduler.counters.num_evictable_blocks == 0
        else:
            assert counters.num_referenced_blocks > 0
        self.check()

    def preempt(self, sequence_id: SequenceId) -> None:
        self.scheduler.preempt(sequence_id)
        self.check()

    def break_stream(self, num_run: int) -> None:
        """The stream ends after `num_run` of the steps in flight ran; no result comes any more."""
        for _ in range(num_run):
            self.execute()
        self.in_flight.clear()
        self.wire.reset()
        self.executor.forget_samples()
        self.scheduler.void_steps()
        assert self.scheduler.num_in_flight == 0
        self.check()

    def restart_executor(self) -> None:
        self.in_flight.clear()
        self.wire.reset()
        self.executor = self._new_executor()
        self.scheduler.reset()
        assert self.scheduler.num_in_flight == 0
        self.check()

    def drain(self) -> None:
        """Steps until everything ended; a scheduler that makes no progress is caught."""
        while self.moving:
            self.give_back()
            self.plan() or self.deliver()
        owed = sum(len(c.expected) + len(c.request.prompt_token_ids) for c in self.ledger.live())
        for _ in range(200 + 20 * owed):
            planned = self.plan()
            if not planned and not self.deliver():
                break
        assert not self.ledger.live(), f"no progress: {[c.key for c in self.ledger.live()]}"
        self.check_clean()

    def check_clean(self) -> None:
        counters = self.scheduler.counters
        assert not self.scheduler.has_work
        assert counters.num_running == counters.num_waiting == 0
        assert counters.num_referenced_blocks == 0
        assert counters.num_free_blocks + counters.num_evictable_blocks == self.limits.num_blocks
