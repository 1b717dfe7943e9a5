"""Executes plans on one device: check, copy, lay out, forward, sample.

Keeps nothing between steps but weights, the KV pool and the last step's samples, which a
run-ahead plan may name as input.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from common.plan import (
    TOKEN_TYPECODE,
    ErrorCode,
    PromptLogprobs,
    SequenceError,
    SequenceId,
    StepPlan,
    StepResult,
    StepTimings,
)
from executor_service.memory.kv_pool import KVPool
from executor_service.models.llama import LlamaModel
from executor_service.runner.batch import InputBatch, build_batch
from executor_service.runner.prompt_logprobs import prompt_logprobs
from executor_service.runner.sampler import Sampled, SampleTask, sample
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.validate import CheckedPlan, LastSamples, PlanChecker

_MESSAGES = {
    ErrorCode.NON_FINITE: "the model's logits are not finite",
    ErrorCode.NO_CANDIDATE: "no token is left to sample from",
}


class ForwardOutputs(NamedTuple):
    """On the device, valid until the next forward pass."""

    hidden: Tensor
    """[num_tokens, hidden] normed"""
    logits: Tensor | None
    """[num_rows, vocab_size] float32; None if none were asked for"""


Forward = Callable[[InputBatch, Sequence[int]], ForwardOutputs]
"""Writes a batch's K and V; computes the logits of the named rows of it."""
Draw = Callable[[Tensor, Sequence[SampleTask]], list[Sampled | ErrorCode]]
"""As `sampler.sample`, for logits where the device has them."""


class ModelRunner:
    """One model on one device. Not for several threads at once."""

    def __init__(
        self,
        spec: ExecutorSpec,
        model_files: dict[str, bytes],
        model: LlamaModel,
        pool: KVPool,
        *,
        forward: Forward | None = None,
        draw: Draw = sample,
    ) -> None:
        """`forward`: another way to run `model` over `pool` than kernel by kernel."""
        self.spec = spec
        self.model_files = model_files
        self.pool = pool
        self._model = model
        self._forward = forward or with_logits(self._run_model, model.logits)
        self._draw = draw
        self._checker = PlanChecker(spec)
        self._last = LastSamples()

    def forget_samples(self) -> None:
        """The stream ended: no later plan may name a sample of this one."""
        self._last = LastSamples()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one plan. Faults of single sequences are in the result, never raised."""
        began = time.perf_counter_ns()
        checked = self._checker.check(plan, self._last)
        self.pool.copy(
            [plan.copy_sources[i] for i in checked.copies],
            [plan.copy_destinations[i] for i in checked.copies],
        )
        step = _Step(plan, checked)
        if not checked.chunks:
            self._last = step.outcome()
            return step.result(StepTimings(prepare_ns=time.perf_counter_ns() - began))
        batch = build_batch(plan, checked.chunks, self._last.tokens, self.spec.block_size)
        tasks, rows = self._sample_tasks(plan, checked, batch)
        prepared = time.perf_counter_ns()
        hidden, logits = self._forward(batch, rows)
        step.prompt_logprobs = prompt_logprobs(plan, batch, hidden, self._model.logits)
        forwarded = time.perf_counter_ns()
        if logits is not None:
            step.put(tasks, self._draw(logits, [task for _, task in tasks]))
        self._last = step.outcome()
        return step.result(
            StepTimings(
                prepare_ns=prepared - began,
                forward_ns=forwarded - prepared,
                sample_ns=time.perf_counter_ns() - forwarded,
            )
        )

    def _run_model(self, batch: InputBatch) -> Tensor:
        return self._model.forward(
            batch.token_ids, batch.positions, batch.layout, self.pool.storage
        )

    def _sample_tasks(
        self, plan: StepPlan, checked: CheckedPlan, batch: InputBatch
    ) -> tuple[list[tuple[int, SampleTask]], list[int]]:
        """Tasks with their index in `plan.sampled`, and the batch's rows that need logits."""
        ends = dict(zip(batch.chunks, batch.first_rows[1:], strict=True))
        tasks: list[tuple[int, SampleTask]] = []
        rows: list[int] = []
        first = 0
        for chunk, count in enumerate(plan.num_samples):
            sampled = range(first, first + count)
            first += count
            wanted = [i for i in sampled if plan.sampled[i].sequence_id not in checked.errors]
            if chunk not in ends or not wanted:
                continue
            history = self._history(plan, chunk)
            for i in wanted:
                task = SampleTask(spec=plan.sampled[i], row=len(rows), history=history)
                tasks.append((i, task))
            rows.append(ends[chunk] - 1)
        return tasks, rows

    def _history(self, plan: StepPlan, chunk: int) -> array[int]:
        end = plan.starts[chunk] + plan.lengths[chunk]
        history = plan.token_buffers[chunk][: min(plan.token_lengths[chunk], end)]
        if len(history) < end:
            history.append(self._last.tokens[plan.sequences[chunk].sequence_id])
        return history


def with_logits(
    hidden_of: Callable[[InputBatch], Tensor], logits_of: Callable[[Tensor], Tensor]
) -> Forward:
    """A forward pass whose logits are computed after it."""

    def forward(batch: InputBatch, rows: Sequence[int]) -> ForwardOutputs:
        hidden = hidden_of(batch)
        return ForwardOutputs(hidden, logits_of(hidden[list(rows)]) if rows else None)

    return forward


class _Step:
    """The answers of one step as they come in."""

    def __init__(self, plan: StepPlan, checked: CheckedPlan) -> None:
        self._plan = plan
        self._errors: dict[SequenceId, SequenceError] = dict(checked.errors)
        self._answers: dict[int, Sampled] = {}
        self.prompt_logprobs: tuple[PromptLogprobs, ...] = ()

    def put(
        self, tasks: Sequence[tuple[int, SampleTask]], answers: Sequence[Sampled | ErrorCode]
    ) -> None:
        for (index, task), answer in zip(tasks, answers, strict=True):
            if isinstance(answer, Sampled):
                self._answers[index] = answer
                continue
            sequence_id = task.spec.sequence_id
            self._errors[sequence_id] = SequenceError(
                sequence_id=sequence_id, code=answer, message=_MESSAGES[answer]
            )

    def outcome(self) -> LastSamples:
        tokens: Mapping[SequenceId, int] = {
            self._plan.sampled[i].sequence_id: answer.token for i, answer in self._answers.items()
        }
        failed = {key: error.code for key, error in self._errors.items()}
        return LastSamples(tokens=tokens, failed=failed)

    def result(self, timings: StepTimings) -> StepResult:
        count = len(self._plan.sampled)
        answers = [self._answers.get(i) for i in range(count)]
        logprobs = [answer.logprobs if answer else None for answer in answers]
        return StepResult(
            step_id=self._plan.step_id,
            tokens=array(TOKEN_TYPECODE, (answer.token if answer else 0 for answer in answers)),
            errors=tuple(self._errors.values()),
            logprobs=logprobs if any(logprobs) else None,
            prompt_logprobs=self.prompt_logprobs,
            timings=timings,
        )
