"""Draws the next token of each row on the device; means exactly what `sampler.sample` means.

Only what parameters and histories say is laid out on the host. What comes back is three numbers a
row, and whole rows of logits for the rows whose requests ask for logprobs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.plan import ErrorCode, SamplingParams, SequenceSpec
from executor_service.kernels.logit_adjust import Adjustments, adjust_logits
from executor_service.kernels.token_draw import DrawColumns, draw_tokens
from executor_service.kernels.transfers import Upload
from executor_service.runner.logprobs import token_logprobs
from executor_service.runner.penalties import adjusts
from executor_service.runner.sampler import Sampled
from executor_service.runner.validate import reads_history

Array = npt.NDArray[Any]

_MAX_INT32 = 2**31 - 1
_MAX_UINT64 = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawTask:
    """One token to draw."""

    spec: SequenceSpec
    row: int
    """Of the logits; several tasks of one request may share it."""
    position: int
    """Of the token: as many tokens as stand before it, those in flight too."""
    history: array[int]
    """All tokens before it, where `reads_history` says that they are read; else anything."""

    @property
    def num_outputs(self) -> int:
        return self.position - self.spec.num_prompt_tokens


def launch_draws(logits: Tensor, tasks: Sequence[DrawTask], upload: Upload) -> Tensor:
    """[3, num_tasks] int32: tokens, whether logits were sound, whether any token was left.

    Where either is 0 the token is a valid id and means nothing. At least one task.
    logits: [num_rows, vocab_size] float32 on the device; not changed.
    """
    rows, *columns = upload([np.array([task.row for task in tasks], np.int64), *_columns(tasks)])
    work, sound = logits, None
    if any(adjusts(task.spec.params, task.num_outputs) for task in tasks):
        sound = torch.isfinite(logits.amax(dim=1)).index_select(0, rows)
        work = logits.index_select(0, rows)
        with np.errstate(over="ignore"):
            adjust_logits(work, _adjustments(tasks, upload))
    elif [task.row for task in tasks] != list(range(len(logits))):
        work = logits.index_select(0, rows)
    tokens, largest = draw_tokens(work, DrawColumns(**dict(zip(_NAMES, columns, strict=True))))
    if sound is None:
        sound = torch.isfinite(largest)
    else:
        # Absurd biases and penalties may have overflowed: to inf, or to NaN, which is below
        # nothing.
        sound &= largest < torch.inf
    return torch.stack((tokens, sound.int(), (largest > -torch.inf).int()))


def answers(
    drawn: Array, tasks: Sequence[DrawTask], raw_rows: Sequence[Array]
) -> list[Sampled | ErrorCode]:
    """One per task. `raw_rows`: logits of each task that asks for logprobs, in their order."""
    found: list[Sampled | ErrorCode] = []
    rows = iter(raw_rows)
    for task, token, is_sound, has_candidate in zip(tasks, *drawn.tolist(), strict=True):
        wanted = task.spec.params.num_logprobs
        row = None if wanted is None else next(rows)
        if not is_sound:
            found.append(ErrorCode.NON_FINITE)
        elif not has_candidate:
            found.append(ErrorCode.NO_CANDIDATE)
        elif wanted is None or row is None:
            found.append(Sampled(token=token))
        else:
            found.append(Sampled(token=token, logprobs=token_logprobs(row, token, wanted)))
    return found


_NAMES = ("temperatures", "top_k", "top_p", "min_p", "seeds", "positions", "indexes")


def _columns(tasks: Sequence[DrawTask]) -> list[Array]:
    """`DrawColumns` in the order of `_NAMES`."""
    params = [task.spec.params for task in tasks]
    return [
        np.array([0.0 if p.is_greedy else p.temperature for p in params], np.float32),
        np.array([min(p.top_k, _MAX_INT32) for p in params], np.int32),
        np.array([p.top_p for p in params], np.float64),
        np.array([p.min_p for p in params], np.float32),
        np.array([p.seed & _MAX_UINT64 for p in params], np.uint64).view(np.int64),
        np.array([task.position for task in tasks], np.int32),
        np.array([task.spec.index for task in tasks], np.int32),
    ]


def _adjustments(tasks: Sequence[DrawTask], upload: Upload) -> Adjustments:
    params = [task.spec.params for task in tasks]
    biases = [_biases(p) for p in params]
    seen = [_seen(task) for task in tasks]
    banned = [
        np.array(p.stop_token_ids if task.num_outputs < p.min_tokens else (), np.int32)
        for p, task in zip(params, tasks, strict=True)
    ]
    columns = {
        "bias_ends": _ends([tokens for tokens, _ in biases]),
        "bias_tokens": _joined([tokens for tokens, _ in biases], np.int32),
        "bias_values": _joined([values for _, values in biases], np.float32),
        "seen_ends": _ends([tokens for tokens, _ in seen]),
        "seen_tokens": _joined([tokens for tokens, _ in seen], np.int32),
        "seen_counts": _joined([counts for _, counts in seen], np.int32),
        "banned_ends": _ends(banned),
        "banned_tokens": _joined(banned, np.int32),
        "repetition": np.array([p.repetition_penalty for p in params], np.float32),
        "presence": np.array([p.presence_penalty for p in params], np.float32),
        "frequency": np.array([p.frequency_penalty for p in params], np.float32),
    }
    return Adjustments(**dict(zip(columns, upload(list(columns.values())), strict=True)))


def _joined(lists: list[Array], dtype: npt.DTypeLike) -> Array:
    """Never empty: an address is taken of it."""
    return np.concatenate([*lists, np.zeros(1)]).astype(dtype)


def _ends(lists: list[Array]) -> Array:
    return np.cumsum([0, *map(len, lists)]).astype(np.int32)


def _biases(params: SamplingParams) -> tuple[Array, Array]:
    """Distinct tokens and what is added to each."""
    total: dict[int, float] = {}
    for token, bias in params.logit_bias:
        total[token] = total.get(token, 0.0) + bias
    return np.array(list(total), np.int32), np.array(list(total.values()), np.float32)


def _seen(task: DrawTask) -> tuple[Array, Array]:
    """Distinct tokens that a penalty touches, and how often each is among the outputs."""
    params = task.spec.params
    history = np.array(task.history if reads_history(params) else (), np.int64)
    outputs, counts = np.unique(history[task.spec.num_prompt_tokens :], return_counts=True)
    if params.repetition_penalty != 1.0:
        tokens = np.unique(history)
        all_counts = np.zeros(len(tokens), np.int64)
        all_counts[np.searchsorted(tokens, outputs)] = counts
        return tokens, all_counts
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        return outputs, counts
    return outputs[:0], counts[:0]
