"""A runner on a random small model, and a driver that feeds it plans without any scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.plan import SamplingParams, SequenceId, SequenceSpec, StepPlan, StepResult
from executor_service.config import ExecutorConfig
from executor_service.runner.load import load_runner
from executor_service.runner.model_runner import ModelRunner
from tests.support.plans import add_chunk, make_spec

NUM_BLOCKS = 96
BLOCK_SIZE = 16


def tiny_runner(directory: Path, **changes: Any) -> ModelRunner:
    fields: dict[str, Any] = {
        "model": str(directory),
        "threads": 1,
        "num_blocks": NUM_BLOCKS,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
    }
    return load_runner(ExecutorConfig(**(fields | changes)), lambda done, total, what: None)


@dataclass(slots=True)
class Running:
    """One sequence with its history, table and KV so far."""

    spec: SequenceSpec
    tokens: list[int]
    table: list[int]
    computed: int = 0
    errors: list[Any] = field(default_factory=list)

    @property
    def outputs(self) -> list[int]:
        return self.tokens[self.spec.num_prompt_tokens :]


class Driver:
    """Runs sequences to a number of outputs, `chunk` prompt tokens of each per step."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._free = list(range(runner.spec.num_blocks))[::-1]
        self._next_id = 1
        self._step_id = 0

    def start(
        self, prompt: Sequence[int], params: SamplingParams, num_outputs: int, index: int = 0
    ) -> Running:
        count = -(-(len(prompt) + num_outputs) // BLOCK_SIZE)
        # Every other block, so that tables are not runs.
        table = self._free[-2 * count :][::2][:count]
        self._free = [block for block in self._free if block not in table]
        spec = make_spec(self._next_id, len(prompt), index=index, params=params)
        self._next_id += 1
        return Running(spec, list(prompt), table)

    def finish(self, sequence: Running) -> None:
        self._free += sequence.table

    def step(self, sequences: Sequence[Running], chunk: int) -> StepResult:
        """Advances each; appends what is sampled."""
        plan = StepPlan(step_id=self._step_id)
        self._step_id += 1
        for sequence in sequences:
            length = min(chunk, len(sequence.tokens) - sequence.computed)
            ends = sequence.computed + length == len(sequence.tokens)
            add_chunk(
                plan,
                sequence.spec,
                sequence.tokens,
                sequence.table,
                start=sequence.computed,
                length=length,
                samples=[sequence.spec] if ends else [],
            )
            sequence.computed += length
        result = self._runner.execute(plan)
        by_id = {sequence.spec.sequence_id: sequence for sequence in sequences}
        failed = {error.sequence_id for error in result.errors}
        for error in result.errors:
            by_id[error.sequence_id].errors.append(error)
        for spec, token in zip(plan.sampled, result.tokens, strict=True):
            if spec.sequence_id not in failed:
                by_id[spec.sequence_id].tokens.append(token)
        return result

    def run(self, sequences: Sequence[Running], num_outputs: int, *, chunk: int = 512) -> None:
        """Until each has its outputs or an error."""
        while True:
            open_ones = [s for s in sequences if len(s.outputs) < num_outputs and not s.errors]
            if not open_ones:
                return
            self.step(open_ones, chunk)


def generate(
    runner: ModelRunner,
    requests: Sequence[tuple[Sequence[int], SamplingParams]],
    num_outputs: int,
    *,
    chunk: int = 512,
) -> list[list[int]]:
    """Outputs of all requests, run together."""
    driver = Driver(runner)
    sequences = [driver.start(prompt, params, num_outputs) for prompt, params in requests]
    driver.run(sequences, num_outputs, chunk=chunk)
    assert not [s.errors for s in sequences if s.errors]
    return [sequence.outputs for sequence in sequences]


def tokens_of(values: Sequence[int]) -> array[int]:
    return array("i", values)


def ids(*values: int) -> list[SequenceId]:
    return [SequenceId(value) for value in values]
