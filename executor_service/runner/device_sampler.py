"""Draws the next token of each row on the device; means exactly what `sampler.sample` means.

Only what parameters and histories say is laid out on the host. Tokens come back in one copy, and
whole rows of logits only for the rows whose requests ask for logprobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.plan import ErrorCode, SamplingParams
from executor_service.kernels.cuda_step import to_device
from executor_service.kernels.logit_adjust import Adjustments, adjust_logits
from executor_service.kernels.token_draw import DrawColumns, draw_tokens
from executor_service.runner.logprobs import token_logprobs
from executor_service.runner.penalties import adjusts
from executor_service.runner.sampler import Sampled, SampleTask

Array = npt.NDArray[Any]

_MAX_INT32 = 2**31 - 1


def sample_on_device(logits: Tensor, tasks: Sequence[SampleTask]) -> list[Sampled | ErrorCode]:
    """One answer per task. logits: [num_rows, vocab_size] float32 on the device; not changed."""
    if not tasks:
        return []
    device = logits.device
    finite = torch.isfinite(logits.amax(dim=1))
    rows = to_device(np.array([task.row for task in tasks], np.int64), device)
    work = logits.index_select(0, rows)
    if any(adjusts(task.spec.params, task.num_outputs) for task in tasks):
        with np.errstate(over="ignore"):
            adjust_logits(work, _adjustments(tasks, device))
    tokens, largest = draw_tokens(work, _columns(tasks, device))
    # Absurd biases and penalties may have overflowed: to inf, or to NaN, which is below nothing.
    sound = finite.index_select(0, rows) & (largest < torch.inf)
    left = largest > -torch.inf
    drawn = torch.stack((tokens, sound.int(), left.int())).tolist()
    answers: list[Sampled | ErrorCode] = []
    for task, token, is_finite, has_candidate in zip(tasks, *drawn, strict=True):
        if not is_finite:
            answers.append(ErrorCode.NON_FINITE)
        elif not has_candidate:
            answers.append(ErrorCode.NO_CANDIDATE)
        else:
            answers.append(_answer(logits, task, token))
    return answers


def _answer(logits: Tensor, task: SampleTask, token: int) -> Sampled:
    wanted = task.spec.params.num_logprobs
    if wanted is None:
        return Sampled(token=token)
    row = logits[task.row].cpu().numpy()
    return Sampled(token=token, logprobs=token_logprobs(row, token, wanted))


def _columns(tasks: Sequence[SampleTask], device: torch.device) -> DrawColumns:
    params = [task.spec.params for task in tasks]

    def column(values: Sequence[float], dtype: npt.DTypeLike) -> Tensor:
        return to_device(np.array(values, dtype), device)

    return DrawColumns(
        temperatures=column([0.0 if p.is_greedy else p.temperature for p in params], np.float32),
        top_k=column([min(p.top_k, _MAX_INT32) for p in params], np.int32),
        top_p=column([p.top_p for p in params], np.float64),
        min_p=column([p.min_p for p in params], np.float32),
        seeds=to_device(np.array([p.seed for p in params], np.uint64).view(np.int64), device),
        positions=column([len(task.history) for task in tasks], np.int32),
        indexes=column([task.spec.index for task in tasks], np.int32),
    )


def _adjustments(tasks: Sequence[SampleTask], device: torch.device) -> Adjustments:
    params = [task.spec.params for task in tasks]
    biases = [_biases(p) for p in params]
    seen = [_seen(task) for task in tasks]
    banned = [
        np.array(p.stop_token_ids if task.num_outputs < p.min_tokens else (), np.int32)
        for p, task in zip(params, tasks, strict=True)
    ]

    def joined(lists: list[Array], dtype: npt.DTypeLike) -> Tensor:
        # Never empty: an address is taken of it.
        return to_device(np.concatenate([*lists, np.zeros(1)]).astype(dtype), device)

    def ends(lists: list[Array]) -> Tensor:
        return to_device(np.cumsum([0, *map(len, lists)]).astype(np.int32), device)

    def column(values: list[float]) -> Tensor:
        return to_device(np.array(values, np.float32), device)

    return Adjustments(
        bias_ends=ends([tokens for tokens, _ in biases]),
        bias_tokens=joined([tokens for tokens, _ in biases], np.int32),
        bias_values=joined([values for _, values in biases], np.float32),
        seen_ends=ends([tokens for tokens, _ in seen]),
        seen_tokens=joined([tokens for tokens, _ in seen], np.int32),
        seen_counts=joined([counts for _, counts in seen], np.int32),
        banned_ends=ends(banned),
        banned_tokens=joined(banned, np.int32),
        repetition=column([p.repetition_penalty for p in params]),
        presence=column([p.presence_penalty for p in params]),
        frequency=column([p.frequency_penalty for p in params]),
    )


def _biases(params: SamplingParams) -> tuple[Array, Array]:
    """Distinct tokens and what is added to each."""
    total: dict[int, float] = {}
    for token, bias in params.logit_bias:
        total[token] = total.get(token, 0.0) + bias
    return np.array(list(total), np.int32), np.array(list(total.values()), np.float32)


def _seen(task: SampleTask) -> tuple[Array, Array]:
    """Distinct tokens that a penalty touches, and how often each is among the outputs."""
    params = task.spec.params
    history = np.array(task.history, np.int64)
    outputs, counts = np.unique(history[task.spec.num_prompt_tokens :], return_counts=True)
    if params.repetition_penalty != 1.0:
        tokens = np.unique(history)
        all_counts = np.zeros(len(tokens), np.int64)
        all_counts[np.searchsorted(tokens, outputs)] = counts
        return tokens, all_counts
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        return outputs, counts
    return outputs[:0], counts[:0]
