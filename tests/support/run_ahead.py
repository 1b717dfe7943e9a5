"""Feeds a runner plans as a scheduler does that plans a step while the one before runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from common.plan import ErrorCode, SamplingParams, StepPlan, StepResult
from tests.support.plans import add_chunk
from tests.support.tiny_runner import BLOCK_SIZE, NUM_BLOCKS, Running, make_spec


class Pending(Protocol):
    def result(self) -> StepResult: ...


class LaunchingRunner(Protocol):
    def launch(self, plan: StepPlan) -> Pending: ...


class RunAhead:
    """`depth` steps are in flight. A decode's input is named as what the step before samples."""

    def __init__(self, runner: LaunchingRunner, depth: int = 2) -> None:
        self._runner = runner
        self._depth = depth
        self._in_flight: deque[tuple[StepPlan, Pending]] = deque()
        self._num_planned: dict[int, int] = {}
        self._sequences: dict[int, Running] = {}
        self._free = list(range(NUM_BLOCKS))
        self._step_id = 0

    def start(
        self, prompt: Sequence[int], params: SamplingParams, num_outputs: int, index: int = 0
    ) -> Running:
        count = -(-(len(prompt) + num_outputs) // BLOCK_SIZE)
        table = [self._free.pop(len(self._free) // 2) for _ in range(count)]
        spec = make_spec(len(self._sequences) + 1, len(prompt), index=index, params=params)
        running = Running(spec, list(prompt), table)
        self._sequences[spec.sequence_id] = running
        self._num_planned[spec.sequence_id] = 0
        return running

    def launch(self, sequences: Sequence[Running], chunk: int = 512) -> Pending:
        """Of each the next piece of prompt, or the next token."""
        plan = StepPlan(step_id=self._step_id)
        self._step_id += 1
        for sequence in sequences:
            spec, start = sequence.spec, sequence.computed
            length = max(1, min(chunk, spec.num_prompt_tokens - start))
            ends = start + length >= spec.num_prompt_tokens
            samples = [spec] if ends else []
            tokens = sequence.tokens[: start + length]
            add_chunk(
                plan, spec, tokens, sequence.table, start=start, length=length, samples=samples
            )
            sequence.computed += length
            self._num_planned[spec.sequence_id] += ends
        pending = self._runner.launch(plan)
        self._in_flight.append((plan, pending))
        return pending

    def take(self) -> StepResult:
        """The oldest step's answers."""
        plan, pending = self._in_flight.popleft()
        result = pending.result()
        failed = {error.sequence_id for error in result.errors}
        for error in result.errors:
            self._sequences[error.sequence_id].errors.append(error)
        for spec, token in zip(plan.sampled, result.tokens, strict=True):
            if spec.sequence_id not in failed:
                self._sequences[spec.sequence_id].tokens.append(token)
        return result

    def run(self, sequences: Sequence[Running], num_outputs: int, chunk: int = 512) -> None:
        """Until each has its outputs or an error."""
        while True:
            wanted = [
                s
                for s in sequences
                if not s.errors and self._num_planned[s.spec.sequence_id] < num_outputs
            ]
            if wanted:
                self.launch(wanted, chunk)
            elif not self._in_flight:
                return
            if not wanted or len(self._in_flight) >= self._depth:
                self.take()


def codes(sequence: Running) -> list[ErrorCode]:
    return [error.code for error in sequence.errors]
