"""Draws the next token of each row by native code; means exactly what `sampler.sample` means."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from common.plan import TOKEN_TYPECODE, ErrorCode, SequenceSpec
from executor_service.kernels.native.sampling import (
    DRAW,
    DRAWN,
    NO_CANDIDATE,
    TokenDraws,
    column,
)
from executor_service.runner.logprobs import token_logprobs
from executor_service.runner.sampler import Logits, Sampled, SampleTask

_ROW, _POSITION, _TOKEN, _STATUS = map(column, ("row", "position", "token", "status"))
_MAX_INT32 = 2**31 - 1
_SEED_MASK = 2**64 - 1


class NativeSampler:
    """`Draw` on the host."""

    def __init__(self, draws: TokenDraws) -> None:
        self._draws = draws
        self._drafts: dict[int, tuple[SequenceSpec, bytes]] = {}
        """Of what the last step sampled, by identity: making a row anew takes longest."""

    def __call__(self, logits: Logits, tasks: Sequence[SampleTask]) -> list[Sampled | ErrorCode]:
        """One answer per task."""
        kept: list[npt.NDArray[Any]] = []
        draws = self._draws_of(tasks)
        for i, task in enumerate(tasks):
            if task.history:
                _adjust(np.frombuffer(draws, DRAW)[i], task, kept)
        self._draws.run(logits.rows, logits.maxima, draws)
        found = zip(tasks, draws[_TOKEN], draws[_STATUS], strict=True)
        return [_answer(logits.rows, task, token, status) for task, token, status in found]

    def _draws_of(self, tasks: Sequence[SampleTask]) -> array[int]:
        """One of DRAW per task, as if no logits were adjusted."""
        before, self._drafts = self._drafts, {}
        draws = array(TOKEN_TYPECODE)
        for task in tasks:
            key = id(task.spec)
            draft = before[key] if key in before else (task.spec, _draft(task.spec))
            self._drafts[key] = draft
            draws.frombytes(draft[1])
        draws[_ROW] = array(TOKEN_TYPECODE, [task.row for task in tasks])
        draws[_POSITION] = array(TOKEN_TYPECODE, [task.position for task in tasks])
        return draws


def _answer(logits: Tensor, task: SampleTask, token: int, status: int) -> Sampled | ErrorCode:
    if status != DRAWN:
        return ErrorCode.NO_CANDIDATE if status == NO_CANDIDATE else ErrorCode.NON_FINITE
    wanted = task.spec.params.num_logprobs
    if wanted is None:
        return Sampled(token)
    return Sampled(token, token_logprobs(logits[task.row].numpy(), token, wanted))


def _draft(spec: SequenceSpec) -> bytes:
    """What of a DRAW stays the same from step to step."""
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


def _adjust(draw: Any, task: SampleTask, kept: list[npt.NDArray[Any]]) -> None:
    """Adds what adjusts logits to a DRAW; arrays that it points to are added to `kept`."""

    def address(values: Sequence[Any], dtype: npt.DTypeLike) -> int:
        if not values:
            return 0
        kept.append(np.array(values, dtype))
        return kept[-1].ctypes.data

    params, history = task.spec.params, task.history
    banned = params.stop_token_ids if task.num_outputs < params.min_tokens else ()
    draw["history"] = history.buffer_info()[0]
    draw["history_length"] = len(history)
    draw["bias_tokens"] = address([token for token, _ in params.logit_bias], np.int32)
    draw["bias_values"] = address([bias for _, bias in params.logit_bias], np.float32)
    draw["num_biases"] = len(params.logit_bias)
    draw["banned"] = address(banned, np.int32)
    draw["num_banned"] = len(banned)
