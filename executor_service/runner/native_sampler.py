"""Draws the next token of each row by native code; means exactly what `sampler.sample` means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from common.plan import ErrorCode, SequenceSpec
from executor_service.kernels.native.sampling import DRAW, DRAWN, NO_CANDIDATE, TokenDraws
from executor_service.runner.logprobs import token_logprobs
from executor_service.runner.sampler import Sampled, SampleTask

_MAX_INT32 = 2**31 - 1
_SEED_MASK = 2**64 - 1


class NativeSampler:
    """`Draw` on the host."""

    def __init__(self, draws: TokenDraws) -> None:
        self._draws = draws
        self._drafts: dict[int, tuple[SequenceSpec, bytes]] = {}
        """Of what the last step sampled, by identity: making a row anew takes longest."""

    def __call__(self, logits: Tensor, tasks: Sequence[SampleTask]) -> list[Sampled | ErrorCode]:
        """One answer per task. logits: [num_rows, vocab_size] float32; not changed."""
        kept: list[npt.NDArray[Any]] = []
        draws = self._rows(tasks)
        for draw, task in zip(draws, tasks, strict=True):
            if task.history:
                _adjust(draw, task, kept)
        self._draws.run(logits, draws)
        found = zip(tasks, draws["token"].tolist(), draws["status"].tolist(), strict=True)
        return [_answer(logits, task, token, status) for task, token, status in found]

    def _rows(self, tasks: Sequence[SampleTask]) -> npt.NDArray[Any]:
        """One row of DRAW per task, as if no logits were adjusted."""
        before, self._drafts = self._drafts, {}
        for spec in (task.spec for task in tasks):
            key = id(spec)
            self._drafts[key] = before[key] if key in before else (spec, _draft(spec))
        rows = bytearray().join(self._drafts[id(task.spec)][1] for task in tasks)
        draws = np.frombuffer(rows, DRAW)
        draws["row"] = [task.row for task in tasks]
        draws["position"] = [task.position for task in tasks]
        return draws


def _answer(logits: Tensor, task: SampleTask, token: int, status: int) -> Sampled | ErrorCode:
    if status != DRAWN:
        return ErrorCode.NO_CANDIDATE if status == NO_CANDIDATE else ErrorCode.NON_FINITE
    wanted = task.spec.params.num_logprobs
    if wanted is None:
        return Sampled(token)
    return Sampled(token, token_logprobs(logits[task.row].numpy(), token, wanted))


def _draft(spec: SequenceSpec) -> bytes:
    """What of a row of DRAW stays the same from step to step."""
    params = spec.params
    row = np.zeros((), DRAW)
    row["seed"] = params.seed & _SEED_MASK
    row["top_p"] = params.top_p
    row["num_prompt"] = spec.num_prompt_tokens
    row["index"] = spec.index
    row["top_k"] = min(params.top_k, _MAX_INT32)
    row["temperature"] = 0.0 if params.is_greedy else params.temperature
    row["min_p"] = params.min_p
    row["repetition"] = params.repetition_penalty
    row["presence"] = params.presence_penalty
    row["frequency"] = params.frequency_penalty
    return row.tobytes()


def _adjust(draw: npt.NDArray[Any], task: SampleTask, kept: list[npt.NDArray[Any]]) -> None:
    """Adds what adjusts logits; arrays that the row points to are added to `kept`."""

    def address(values: Sequence[Any], dtype: npt.DTypeLike) -> int:
        if not values:
            return 0
        array = np.array(values, dtype)
        kept.append(array)
        return array.ctypes.data

    params, history = task.spec.params, task.history
    banned = params.stop_token_ids if task.num_outputs < params.min_tokens else ()
    draw["history"] = history.buffer_info()[0]
    draw["history_length"] = len(history)
    draw["bias_tokens"] = address([token for token, _ in params.logit_bias], np.int32)
    draw["bias_values"] = address([bias for _, bias in params.logit_bias], np.float32)
    draw["num_biases"] = len(params.logit_bias)
    draw["banned"] = address(banned, np.int32)
    draw["num_banned"] = len(banned)
