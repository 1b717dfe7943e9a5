"""Executes plans on one device: check, copy, lay out, forward, sample.

Keeps nothing between steps but weights, the KV pool and the last step's samples, which a
run-ahead plan may name as input.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from common.plan import TOKEN_TYPECODE, ErrorCode, StepPlan, StepResult, StepTimings
from executor_service.memory.kv_pool import KVPool
from executor_service.models.llama import LlamaModel
from executor_service.runner.batch import build_batch
from executor_service.runner.penalties import adjusts
from executor_service.runner.prompt_logprobs import prompt_logprobs
from executor_service.runner.sampler import Logits, Sampled, SampleTask, sample
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.step_answers import StepAnswers
from executor_service.runner.step_chunks import StepChunks, sample_rows, step_chunks
from executor_service.runner.validate import CheckedPlan, LastSamples, PlanChecker

_NO_TOKENS = array(TOKEN_TYPECODE)


class ForwardOutputs(NamedTuple):
    """On the device, valid until the next forward pass. Rows beyond those named mean nothing."""

    hidden: Tensor
    """[num_tokens or more, hidden] normed"""
    logits: Logits | None
    """None if none were asked for"""


Forward = Callable[[StepChunks, Sequence[int]], ForwardOutputs]
"""Writes a step's K and V; computes the logits of the named rows of it."""
Draw = Callable[[Logits, Sequence[SampleTask]], list[Sampled | ErrorCode]]
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
        draw: Draw | None = None,
    ) -> None:
        """`forward`: another way to run `model` over `pool` than kernel by kernel; `draw`: than
        `sampler.sample`."""
        self.spec = spec
        self.model_files = model_files
        self.pool = pool
        self._model = model
        self._forward = forward or with_logits(self._run_model, model.logits)
        self._draw = draw or _sample
        self._checker = PlanChecker(spec)
        self._last = LastSamples()

    def forget_samples(self) -> None:
        """The stream ended: no later plan may name a sample of this one."""
        self._last = LastSamples()

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one plan. Faults of single sequences are in the result, never raised."""
        began = time.perf_counter_ns()
        checked = self._checker.check(plan, self._last)
        if checked.copies:
            self._copy_blocks(plan, checked.copies)
        answers = StepAnswers(plan, checked)
        if not checked.chunks:
            self._last = answers.outcome()
            return answers.result(StepTimings(prepare_ns=time.perf_counter_ns() - began))
        step = step_chunks(plan, checked, self._last.tokens)
        tasks, rows = self._sample_tasks(plan, checked, step)
        prepared = time.perf_counter_ns()
        hidden, logits = self._forward(step, rows)
        answers.prompt_logprobs = prompt_logprobs(plan, step, hidden, self._model.logits)
        forwarded = time.perf_counter_ns()
        if logits is not None:
            drawn = self._draw(logits, [task for _, task in tasks])
            answers.put((i, answer) for (i, _), answer in zip(tasks, drawn, strict=True))
        self._last = answers.outcome()
        return answers.result(
            StepTimings(
                prepare_ns=prepared - began,
                forward_ns=forwarded - prepared,
                sample_ns=time.perf_counter_ns() - forwarded,
            )
        )

    @torch.inference_mode()
    def _copy_blocks(self, plan: StepPlan, copies: Sequence[int]) -> None:
        self.pool.copy(
            [plan.copy_sources[i] for i in copies], [plan.copy_destinations[i] for i in copies]
        )

    def _run_model(self, step: StepChunks) -> Tensor:
        batch = build_batch(step, self.spec.block_size)
        return self._model.forward(
            batch.token_ids, batch.positions, batch.layout, self.pool.storage
        )

    def _sample_tasks(
        self, plan: StepPlan, checked: CheckedPlan, step: StepChunks
    ) -> tuple[list[tuple[int, SampleTask]], list[int]]:
        """Tasks with their index in `plan.sampled`, and the step's rows that need logits."""
        tasks: list[tuple[int, SampleTask]] = []
        rows: list[int] = []
        for row in sample_rows(plan, checked.errors, step):
            for i in row.sampled:
                spec = plan.sampled[i]
                position = plan.starts[row.chunk] + plan.lengths[row.chunk]
                is_read = adjusts(spec.params, position - spec.num_prompt_tokens)
                history = self._history(plan, row.chunk) if is_read else _NO_TOKENS
                task = SampleTask(spec=spec, row=len(rows), position=position, history=history)
                tasks.append((i, task))
            rows.append(row.token)
        return tasks, rows

    def _history(self, plan: StepPlan, chunk: int) -> array[int]:
        end = plan.starts[chunk] + plan.lengths[chunk]
        history = plan.token_buffers[chunk][: min(plan.token_lengths[chunk], end)]
        if len(history) < end:
            history.append(self._last.tokens[plan.sequences[chunk].sequence_id])
        return history


def with_logits(
    hidden_of: Callable[[StepChunks], Tensor], logits_of: Callable[[Tensor], Tensor]
) -> Forward:
    """A forward pass whose logits are computed after it."""

    @torch.inference_mode()
    def forward(step: StepChunks, rows: Sequence[int]) -> ForwardOutputs:
        hidden = hidden_of(step)
        return ForwardOutputs(hidden, Logits(logits_of(hidden[list(rows)])) if rows else None)

    return forward


def _sample(logits: Logits, tasks: Sequence[SampleTask]) -> list[Sampled | ErrorCode]:
    return sample(logits.rows, tasks)
