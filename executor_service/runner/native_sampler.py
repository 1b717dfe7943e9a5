"""Draws the next token of each row by native code; means exactly what `sampler.sample` means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from common.plan import ErrorCode
from executor_service.kernels.native.sampling import DRAW, DRAWN, NO_CANDIDATE, TokenDraws
from executor_service.runner.logprobs import token_logprobs
from executor_service.runner.sampler import Sampled, SampleTask

_MAX_INT32 = 2**31 - 1
_SEED_MASK = 2**64 - 1


class NativeSampler:
    """`Draw` on the host."""

    def __init__(self, draws: TokenDraws) -> None:
        self._draws = draws

    def __call__(self, logits: Tensor, tasks: Sequence[SampleTask]) -> list[Sampled | ErrorCode]:
        """One answer per task. logits: [num_rows, vocab_size] float32; not changed."""
        kept: list[npt.NDArray[Any]] = []
        draws = np.array([_columns(task, kept) for task in tasks], DRAW)
        self._draws.run(logits, draws)
        found = zip(tasks, draws["token"].tolist(), draws["status"].tolist(), strict=True)
        return [_answer(logits, task, token, status) for task, token, status in found]


def _answer(logits: Tensor, task: SampleTask, token: int, status: int) -> Sampled | ErrorCode:
    if status != DRAWN:
        return ErrorCode.NO_CANDIDATE if status == NO_CANDIDATE else ErrorCode.NON_FINITE
    wanted = task.spec.params.num_logprobs
    if wanted is None:
        return Sampled(token=token)
    return Sampled(token=token, logprobs=token_logprobs(logits[task.row].numpy(), token, wanted))


def _columns(task: SampleTask, kept: list[npt.NDArray[Any]]) -> tuple[Any, ...]:
    """One row of DRAW; arrays that it points to are added to `kept`."""

    def address(values: Sequence[Any], dtype: npt.DTypeLike) -> int:
        if not values:
            return 0
        array = np.array(values, dtype)
        kept.append(array)
        return array.ctypes.data

    spec, params, history = task.spec, task.spec.params, task.history
    banned = params.stop_token_ids if task.num_outputs < params.min_tokens else ()
    return (
        params.seed & _SEED_MASK,
        params.top_p,
        history.buffer_info()[0],
        address([token for token, _ in params.logit_bias], np.int32),
        address([bias for _, bias in params.logit_bias], np.float32),
        address(banned, np.int32),
        len(history),
        spec.num_prompt_tokens,
        len(params.logit_bias),
        len(banned),
        task.row,
        len(history),
        spec.index,
        min(params.top_k, _MAX_INT32),
        0.0 if params.is_greedy else params.temperature,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        0,
        0,
    )
