"""Executes plans on a device that is run ahead of: a step is launched while others still run.

A launch checks the plan, sends what the step needs, puts all its work into the device's stream and
returns. The tokens of a step stay on the device, where the next step takes them as input, and are
copied to the host besides; so between two steps the device waits for nobody. Whether a token of the
step in flight is one at all (its logits may be NaN) is found out when that step's answers are read:
until then the sequence computes on in its own blocks, and then fails like the token did.

Penalties take a token in flight from where it was drawn as well, and min_tokens only counts. So
one thing alone waits: logprobs of prompts are computed within the launch.

Keeps nothing between steps but weights, the KV pool and the last step's samples.
"""

from __future__ import annotations

import dataclasses
import time
from array import array
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.plan import TOKEN_TYPECODE, SequenceId, StepPlan, StepResult
from executor_service.kernels.device_stream import DeviceStream, Mark
from executor_service.kernels.transfers import Downloads, Uploads
from executor_service.memory.kv_pool import KVPool
from executor_service.models.llama import LlamaModel
from executor_service.runner.batch import InputBatch, build_batch
from executor_service.runner.device_sampler import launch_draws
from executor_service.runner.draw_task import DrawTask
from executor_service.runner.launched_step import Launched, LaunchedStep
from executor_service.runner.penalties import reads_history
from executor_service.runner.prompt_logprobs import prompt_logprobs
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.step_answers import StepAnswers
from executor_service.runner.step_chunks import SampleRow, StepChunks, sample_rows, step_chunks
from executor_service.runner.validate import CheckedPlan, LastSamples, PlanChecker

_NO_TOKENS = array(TOKEN_TYPECODE)


class DeviceRunner:
    """One model on one device. `launch` is called by one thread at a time."""

    def __init__(
        self,
        spec: ExecutorSpec,
        model_files: dict[str, bytes],
        model: LlamaModel,
        pool: KVPool,
        *,
        forward: Callable[[InputBatch], Tensor],
        stream: DeviceStream,
        uploads: Uploads,
    ) -> None:
        """`forward` computes normed hidden states [num_tokens, hidden] and waits for nothing, the
        batch's tokens and positions being on the device. `uploads` are those by which the backend
        of pool and model sends its columns."""
        self.spec = spec
        self.model_files = model_files
        self.pool = pool
        self._model = model
        self._forward = forward
        self._stream = stream
        self._uploads = uploads
        self._downloads = Downloads(stream)
        self._checker = PlanChecker(spec)
        self._last: LaunchedStep | None = None

    def forget_samples(self) -> None:
        """The stream ended: no later plan may name a sample of this one."""
        self._last = None

    def execute(self, plan: StepPlan) -> StepResult:
        """Launches one plan and waits for it."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Puts one plan's work behind all that was launched before.

        Faults of single sequences are in its result, never raised.
        """
        began_ns = time.perf_counter_ns()
        last = self._last
        checked = self._checker.check(plan, last.known if last else LastSamples())
        self._uploads.begin()
        began = self._stream.mark()
        self.pool.copy(
            [plan.copy_sources[i] for i in checked.copies],
            [plan.copy_destinations[i] for i in checked.copies],
        )
        answers = StepAnswers(plan, checked)
        tasks: list[tuple[int, DrawTask]] = []
        fetched: list[Tensor] = []
        forwarded = began
        in_flight: list[int] = []
        if checked.chunks:
            step = step_chunks(plan, checked, _placeholders(last))
            in_flight = [chunk for chunk in step.chunks if _is_in_flight(plan, chunk)]
            rows: list[int] = []
            tasks, rows = self._tasks(plan, checked, step)
            fetched, forwarded = self._compute(plan, step, rows, tasks, answers)
        self._uploads.end()
        launched = Launched(
            plan=plan,
            answers=answers,
            tasks=tasks,
            in_flight=in_flight,
            arrival=self._downloads.fetch(fetched),
            prepare_ns=time.perf_counter_ns() - began_ns,
            began=began,
            forwarded=forwarded,
        )
        drawn = {task.spec.sequence_id: i for i, (_, task) in enumerate(tasks)}
        known = LastSamples(tokens=drawn, failed=answers.outcome().failed)
        self._last = LaunchedStep(launched, fetched[0][0] if fetched else None, known, last)
        return self._last

    def _compute(
        self,
        plan: StepPlan,
        step: StepChunks,
        rows: Sequence[int],
        tasks: Sequence[tuple[int, DrawTask]],
        answers: StepAnswers,
    ) -> tuple[list[Tensor], Mark]:
        """What is to be fetched, draws first; and the end of the forward pass."""
        batch = build_batch(step, self.spec.block_size)
        on_device, sample_rows = self._send(plan, batch, rows)
        hidden = self._forward(on_device)
        answers.prompt_logprobs = prompt_logprobs(plan, step, hidden, self._model.logits)
        logits = self._model.logits(hidden.index_select(0, sample_rows)) if rows else None
        forwarded = self._stream.mark()
        if logits is None:
            return [], forwarded
        before = self._last.tokens if self._last else None
        fetched = [launch_draws(logits, [task for _, task in tasks], self._uploads.send, before)]
        scored = [t.row for _, t in tasks if t.spec.params.num_logprobs is not None]
        if scored:
            (wanted,) = self._uploads.send([np.array(scored, np.int64)])
            fetched.append(logits.index_select(0, wanted))
        return fetched, forwarded

    def _send(
        self, plan: StepPlan, batch: InputBatch, rows: Sequence[int]
    ) -> tuple[InputBatch, Tensor]:
        """The batch with its tokens and positions on the device, and the rows to sample from."""
        token_ids, positions = batch.token_ids.numpy(), batch.positions.numpy()
        in_flight, sources = self._inputs_in_flight(plan, batch)
        sent = self._uploads.send(
            [token_ids, positions, np.array(rows, np.int64), in_flight, sources]
        )
        inputs = sent[0]
        if len(sources):
            assert self._last is not None, "checked: the step before drew these"
            assert self._last.tokens is not None, "likewise"
            inputs = torch.where(sent[3], self._last.tokens.index_select(0, sent[4]), inputs)
        return dataclasses.replace(batch, token_ids=inputs, positions=sent[1]), sent[2]

    def _inputs_in_flight(
        self, plan: StepPlan, batch: InputBatch
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Which of the batch's tokens the step before draws, and by which of its draws.

        Both [num_tokens], or both empty if none is.
        """
        rows = [row for row, chunk in enumerate(batch.chunks) if _is_in_flight(plan, chunk)]
        num_tokens = batch.first_rows[-1] if rows else 0
        in_flight, sources = np.zeros(num_tokens, np.bool_), np.zeros(num_tokens, np.int64)
        for row in rows:
            assert self._last is not None, "checked: there was a step before"
            token = batch.first_rows[row]
            in_flight[token] = True
            sources[token] = self._last.known.tokens[plan.sequences[batch.chunks[row]].sequence_id]
        return in_flight, sources

    def _tasks(
        self, plan: StepPlan, checked: CheckedPlan, step: StepChunks
    ) -> tuple[list[tuple[int, DrawTask]], list[int]]:
        """Tasks with their index in `plan.sampled`, and the step's rows that need logits."""
        tasks: list[tuple[int, DrawTask]] = []
        rows: list[int] = []
        for row in sample_rows(plan, checked.errors, step):
            position = plan.starts[row.chunk] + plan.lengths[row.chunk]
            history, in_flight = self._history(plan, row)
            for i in row.sampled:
                task = DrawTask(
                    spec=plan.sampled[i],
                    row=len(rows),
                    position=position,
                    history=history,
                    in_flight=in_flight if reads_history(plan.sampled[i].params) else None,
                )
                tasks.append((i, task))
            rows.append(row.token)
        return tasks, rows

    def _history(self, plan: StepPlan, row: SampleRow) -> tuple[array[int], int | None]:
        """What the host knows of a chunk's tokens, and the draw of the step before that gives the
        one behind them; nothing if no penalty reads them."""
        if not any(reads_history(plan.sampled[i].params) for i in row.sampled):
            return _NO_TOKENS, None
        position = plan.starts[row.chunk] + plan.lengths[row.chunk]
        history = plan.token_buffers[row.chunk][: min(plan.token_lengths[row.chunk], position)]
        if not _is_in_flight(plan, row.chunk):
            return history, None
        assert self._last is not None, "checked: there was a step before"
        # Of a sequence that failed the draw means nothing; nor will anybody read this one.
        return history, self._last.known.tokens[plan.sequences[row.chunk].sequence_id]


def _placeholders(last: LaunchedStep | None) -> dict[SequenceId, int]:
    """Stand where the device puts tokens of the step before."""
    return dict.fromkeys(last.known.tokens, 0) if last else {}


def _is_in_flight(plan: StepPlan, chunk: int) -> bool:
    """Whether the chunk's token is the one that the step before samples for its sequence."""
    return plan.token_lengths[chunk] <= plan.starts[chunk]
