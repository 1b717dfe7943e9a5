"""Draws the next token of each row on the device; means exactly what `sampler.sample` means.

Only what parameters and histories say is laid out on the host. What comes back is three numbers a
row, and whole rows of logits for the rows whose requests ask for logprobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.plan import ErrorCode
from executor_service.kernels.logit_adjust import adjust_logits
from executor_service.kernels.token_draw import DrawColumns, draw_tokens
from executor_service.kernels.transfers import Upload
from executor_service.runner.device_penalties import adjustments
from executor_service.runner.draw_task import DrawTask
from executor_service.runner.logprobs import token_logprobs
from executor_service.runner.penalties import adjusts
from executor_service.runner.sampler import Sampled

Array = npt.NDArray[Any]

_MAX_INT32 = 2**31 - 1
_MAX_UINT64 = 2**64 - 1


def launch_draws(
    logits: Tensor, tasks: Sequence[DrawTask], upload: Upload, before: Tensor | None = None
) -> Tensor:
    """[3, num_tasks] int32: tokens, whether logits were sound, whether any token was left.

    Where either is 0 the token is a valid id and means nothing. At least one task.
    logits: [num_rows, vocab_size] float32 on the device; not changed.
    before: [num_draws] int32 there, the tokens of the step before; None if no task has one of them
    in flight.
    """
    rows, *columns = upload([np.array([task.row for task in tasks], np.int64), *_columns(tasks)])
    work, sound = logits, None
    if any(adjusts(task.spec.params, task.num_outputs) for task in tasks):
        sound = torch.isfinite(logits.amax(dim=1)).index_select(0, rows)
        work = logits.index_select(0, rows)
        with np.errstate(over="ignore"):
            adjust_logits(work, adjustments(tasks, upload, before))
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
