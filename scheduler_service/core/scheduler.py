"""The door to the core: requests and results in, plans and events out.

The caller owns the loop: add and abort as they come; `schedule` until it returns None; send each
plan; `apply` results in order; `take_events` after any of these. Everything is deterministic.

All of it works on one `state.py`. Which call goes where:

    add             intake.py: refused, or a sequence that waits in the order of policy.py
    schedule        planner.py, a plan:
      1 decodes       a slot for the next token; none left: room.py takes a block from the victim
                      that policy.py picks, by ending.py
      2 prompts       those in progress, as many tokens as step_budget.py leaves beside decodes
      3 new ones      admission.py: kv_cache.py looks up the cached prefix, twins.py passes over a
                      sequence whose prefix another one is computing
      at the end      forking.py: n choices from one prompt, that share blocks (forks.py)
      all of it       plan_builder.py writes the plan's columns
    apply           applier.py: KV is confirmed and goes to the tree, tokens are delivered, ends
    abort, finish, expire, preempt       ending.py, the only way out
    void_steps, reset                    recovery.py: plan again from what is confirmed

Blocks are behind kv_cache.py alone: block_pool.py (free or named), block_table.py (whose), and
radix_tree.py (cached; eviction.py says which goes first).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Collection

from common.plan import BlockId, SequenceId, StepPlan, StepResult
from scheduler_service.core import applier, counters, ending, intake, recovery
from scheduler_service.core.counters import Counters, LiveKV
from scheduler_service.core.events import Events, SequenceKey
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.planner import Planner
from scheduler_service.core.policy import Fcfs, SchedulingPolicy
from scheduler_service.core.request import FinishReason, PriorOutput, Request
from scheduler_service.core.sequence import Sequence, SequenceStatus, token_bytes
from scheduler_service.core.state import SchedulerState
from scheduler_service.core.step_budget import StepCosts

__all__ = ["Scheduler", "SchedulerLimits"]


class Scheduler:
    """All decisions for one executor: queue, batch, block tables, prefix tree."""

    def __init__(self, limits: SchedulerLimits, policy: SchedulingPolicy | None = None) -> None:
        self.state = SchedulerState.new(limits, policy or Fcfs())
        self._planner = Planner(self.state)
        self._deadlines: list[tuple[float, str]] = []

    @property
    def limits(self) -> SchedulerLimits:
        return self.state.limits

    @property
    def has_work(self) -> bool:
        """Whether any sequence has not ended."""
        return bool(self.state.sequences)

    @property
    def num_in_flight(self) -> int:
        """Steps whose result has not come."""
        return len(self.state.in_flight)

    @property
    def counters(self) -> Counters:
        return counters.snapshot(self.state)

    @property
    def live_kv(self) -> LiveKV:
        """Of the counters the part that is looked at after every step."""
        return counters.live_kv(self.state)

    # Requests

    def add(self, request: Request, outputs: Collection[PriorOutput] = ()) -> None:
        """Accepts a request, or choices of one that ran elsewhere before.

        RefusedError naming the field if it can never run here; its subclass QueueFullError if
        there is no room now. Nothing has changed then.
        """
        intake.take_in(self.state, request, outputs)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.request_id))

    def abort(self, request_id: str) -> bool:
        """Ends every live choice. False if there is none: repeating it is harmless."""
        return self._end_all(request_id, FinishReason.ABORT)

    def finish(self, sequence_id: SequenceId, num_output_tokens: int, reason: FinishReason) -> None:
        """Ends a choice after its first `num_output_tokens`: what came later is dropped, also from
        the tree. Does nothing if it has ended already."""
        state = self.state
        sequence = state.sequences.get(sequence_id)
        if sequence is None:
            return
        # A new buffer: plans in flight hold views of the old one.
        sequence.tokens = sequence.tokens[: sequence.spec.num_prompt_tokens + num_output_tokens]
        state.kv.trim(sequence)
        ending.end(state, sequence, reason)

    def expire(self, now: float) -> None:
        """Ends every request whose deadline is not after `now`, without device work."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            live = self.state.requests.get(request_id, {})
            # The id may have been used again since, with another deadline.
            if any(
                s.request.deadline is not None and s.request.deadline <= now for s in live.values()
            ):
                self._end_all(request_id, FinishReason.EXPIRED)

    @property
    def next_deadline(self) -> float | None:
        """When `expire` may have something to do next; a request may have ended before."""
        return self._deadlines[0][0] if self._deadlines else None

    def take_waiting(self, limit: int) -> list[tuple[Request, tuple[PriorOutput, ...]]]:
        """Removes up to `limit` sequences that hold no KV and are in no step in flight, the last in
        order first. Each pair is what `add` takes on another core."""
        state = self.state
        idle = [sequence for sequence in state.waiting if not sequence.num_in_flight]
        taken = idle[max(0, len(idle) - limit) :]
        for sequence in taken:
            ending.forget(state, sequence)
        return [(sequence.request, _prior_outputs(sequence)) for sequence in taken]

    # Steps

    def expect(self, costs: StepCosts) -> None:
        """What steps take from now on; until the first call nothing bounds prompts but the token
        budget."""
        self.state.costs = costs

    def schedule(self) -> StepPlan | None:
        """The next step, in flight from now on. None: nothing to run, or `depth` are in flight."""
        if len(self.state.in_flight) >= self.state.limits.depth:
            return None
        self.state.kv.tree.clock += 1
        return self._planner.plan()

    def apply(self, result: StepResult) -> None:
        """Takes the result of the oldest step in flight; any other is counted and dropped.

        ValueError if it does not fit its plan: reopen the stream then.
        """
        applier.apply(self.state, result)

    def void_steps(self) -> None:
        """The stream ended and the executor has stopped: plan again from what is confirmed."""
        recovery.void_steps(self.state)

    def reset(self) -> None:
        """The executor is another incarnation: pool and tree are empty."""
        recovery.reset(self.state)

    def take_events(self) -> Events:
        """Everything that happened since the last call."""
        events, self.state.events = self.state.events, Events()
        return events

    # Questions and seams

    def sequence_id_of(self, key: SequenceKey) -> SequenceId | None:
        """The live sequence known outside as `key`."""
        sequence = self.state.requests.get(key.request_id, {}).get(key.choice)
        return sequence.sequence_id if sequence is not None else None

    def match_length(self, request: Request) -> int:
        """Tokens of the prompt that are cached here now."""
        size = self.limits.block_size
        count = (len(request.prompt_token_ids) - 1) // size * size
        tokens = token_bytes(request.prompt_token_ids[:count])
        return self.state.kv.tree.match(request.cache_root, tokens).num_blocks * size

    def reset_prefix_cache(self) -> bool:
        """Empties the tree. False, and nothing done, while sequences hold any of it."""
        return self.state.kv.tree.clear()

    def preempt(self, sequence_id: SequenceId) -> None:
        """Makes a running sequence give up its KV now. A seam for tests and operators."""
        sequence = self.state.sequences.get(sequence_id)
        if sequence is not None and sequence.status is SequenceStatus.RUNNING:
            ending.preempt(self.state, sequence)

    def block_table(self, sequence_id: SequenceId) -> list[BlockId]:
        """Blocks of a live sequence, in order."""
        return self.state.sequences[sequence_id].table.block_ids

    def _end_all(self, request_id: str, reason: FinishReason) -> bool:
        live = list(self.state.requests.get(request_id, {}).values())
        for sequence in live:
            ending.end(self.state, sequence, reason)
        return bool(live)


def _prior_outputs(sequence: Sequence) -> tuple[PriorOutput, ...]:
    """None for a request that has not started: it will fork by itself."""
    is_fresh = sequence.num_output_tokens == 0 and sequence.spec.index == 0
    if is_fresh and sequence.forks_left == sequence.request.n - 1:
        return ()
    outputs = sequence.tokens[sequence.spec.num_prompt_tokens :]
    return (PriorOutput(index=sequence.spec.index, token_ids=outputs),)
