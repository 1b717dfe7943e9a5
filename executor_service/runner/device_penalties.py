"""What `penalties.adjust` changes, as the lists that the device's kernel takes.

The token in flight of a row is on no list: the kernel takes it from where the step before drew it,
so that nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from common.plan import SamplingParams
from executor_service.kernels.logit_adjust import Adjustments
from executor_service.kernels.transfers import Upload
from executor_service.runner.draw_task import DrawTask
from executor_service.runner.penalties import reads_history

Array = npt.NDArray[Any]

_NONE = -1


def adjustments(tasks: Sequence[DrawTask], upload: Upload, before: Tensor | None) -> Adjustments:
    """One row a task. before: [num_draws] int32 on the device, the tokens of the step before; None
    only if no task has one in flight."""
    params = [task.spec.params for task in tasks]
    biases = [_biases(p) for p in params]
    seen = [_seen(task) for task in tasks]
    banned = [
        np.array(p.stop_token_ids if task.num_outputs < p.min_tokens else (), np.int32)
        for p, task in zip(params, tasks, strict=True)
    ]
    sources = [_NONE if task.in_flight is None else task.in_flight for task in tasks]
    columns = {
        "bias_ends": _ends([tokens for tokens, _ in biases]),
        "bias_tokens": _joined([tokens for tokens, _ in biases], np.int32),
        "bias_values": _joined([values for _, values in biases], np.float32),
        "seen_ends": _ends([tokens for tokens, _ in seen]),
        "seen_tokens": _joined([tokens for tokens, _ in seen], np.int32),
        "seen_counts": _joined([counts for _, counts in seen], np.int32),
        "banned_ends": _ends(banned),
        "banned_tokens": _joined(banned, np.int32),
        "sources": np.array(sources, np.int32),
        "repetition": np.array([p.repetition_penalty for p in params], np.float32),
        "presence": np.array([p.presence_penalty for p in params], np.float32),
        "frequency": np.array([p.frequency_penalty for p in params], np.float32),
    }
    if before is None:
        assert max(sources) == _NONE, "a token in flight is of a step before"
        # Never read, but an address is taken of it.
        columns["drawn"] = np.zeros(1, np.int32)
    sent = dict(zip(columns, upload(list(columns.values())), strict=True))
    return Adjustments(**(sent if before is None else sent | {"drawn": before}))


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
