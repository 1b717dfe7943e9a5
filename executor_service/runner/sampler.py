"""Draws the next token of each row by its own parameters and its own random numbers.

Every row is computed alone, so neighbours cannot change it. The order is: logit bias, penalties,
min_tokens, temperature, top-k, top-p, min-p; then one Philox uniform per token and the inverse of
the cumulative distribution in float32, over the kept tokens in ascending id.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.philox import Purpose, uniforms
from common.plan import ErrorCode, SamplingParams, SequenceSpec, TokenLogprobs
from executor_service.runner.logprobs import best_tokens, token_logprobs
from executor_service.runner.penalties import adjust, adjusts

Floats = npt.NDArray[np.float32]

_SMALLEST = np.finfo(np.float32).smallest_subnormal


class Logits(NamedTuple):
    """Of the rows of a step that something is sampled from."""

    rows: Tensor
    """[num_rows or more, vocab_size] float32"""
    maxima: Tensor | None = None
    """[num_rows or more, num_blocks] of blocks of each row, where a forward pass found them too"""


class SampleTask(NamedTuple):
    """One token to draw."""

    spec: SequenceSpec
    row: int
    """Of the logits; several tasks of one request may share it."""
    position: int
    """Of the token in its sequence."""
    history: array[int]
    """Prompt and outputs before it, with the input that was pending, where `penalties.adjusts` says
    that something is adjusted; else empty."""

    @property
    def num_outputs(self) -> int:
        return self.position - self.spec.num_prompt_tokens


class Sampled(NamedTuple):
    token: int
    logprobs: TokenLogprobs | None = None


def sample(logits: Tensor, tasks: Sequence[SampleTask]) -> list[Sampled | ErrorCode]:
    """One answer per task. logits: [num_rows, vocab_size] float32 on the host; not changed."""
    largest, best = logits.max(dim=1)
    finite, first = torch.isfinite(largest).tolist(), best.tolist()
    draws = _draws(tasks)
    rows = logits.numpy()
    answers: list[Sampled | ErrorCode] = []
    for task, uniform in zip(tasks, draws, strict=True):
        if not finite[task.row]:
            answers.append(ErrorCode.NON_FINITE)
            continue
        params, row = task.spec.params, rows[task.row]
        if params.is_greedy and not adjusts(params, task.num_outputs):
            token: int | ErrorCode = first[task.row]
        else:
            token = _draw(row, task, uniform)
        if isinstance(token, ErrorCode):
            answers.append(token)
            continue
        wanted = params.num_logprobs
        logprobs = None if wanted is None else token_logprobs(row, token, wanted)
        answers.append(Sampled(token=token, logprobs=logprobs))
    return answers


def _draws(tasks: Sequence[SampleTask]) -> list[np.float32]:
    """One uniform per task; a place nobody asks costs nothing."""
    random = [i for i, task in enumerate(tasks) if not task.spec.params.is_greedy]
    draws = [np.float32(0)] * len(tasks)
    if random:
        values = uniforms(
            [tasks[i].spec.params.seed for i in random],
            [tasks[i].position for i in random],
            [tasks[i].spec.index for i in random],
            Purpose.SAMPLE,
        )
        for i, value in zip(random, values, strict=True):
            draws[i] = value
    return draws


def _draw(row: Floats, task: SampleTask, uniform: np.float32) -> int | ErrorCode:
    params = task.spec.params
    logits = row
    if adjusts(params, task.num_outputs):
        logits = row.copy()
        # Absurd biases and penalties may overflow; what comes of it is looked at below.
        with np.errstate(over="ignore", invalid="ignore"):
            adjust(logits, params, task.history, task.spec.num_prompt_tokens)
    best = int(logits.argmax())
    if logits[best] == -np.inf:
        return ErrorCode.NO_CANDIDATE
    if not np.isfinite(logits[best]):
        return ErrorCode.NON_FINITE
    return best if params.is_greedy else draw_token(logits, params, uniform)


def draw_token(logits: Floats, params: SamplingParams, uniform: np.float32) -> int:
    """Temperature and truncations, then the token at `uniform` of what is kept.

    logits: [vocab_size] after penalties, with a finite maximum.
    """
    token_ids = _top_k(logits, params.top_k)
    weights = kept_weights(logits if token_ids is None else logits[token_ids], params)
    cumulative = np.cumsum(weights, dtype=np.float64)
    distribution = (cumulative / cumulative[-1]).astype(np.float32)
    # A uniform of 0 must not draw what stands, with no weight, before the first kept token.
    place = int(np.searchsorted(distribution, max(uniform, _SMALLEST), side="left"))
    if place == len(weights):
        place = int(np.flatnonzero(weights)[-1])
    return place if token_ids is None else int(token_ids[place])


def kept_weights(logits: Floats, params: SamplingParams) -> Floats:
    """Unnormalized probabilities, largest 1; 0 where top-p or min-p drop a token.

    At an edge of equal values the lower ids are kept.
    """
    weights: Floats = np.exp((logits - logits.max()) / np.float32(params.temperature))
    if params.top_p < 1.0:
        weights = np.where(_nucleus(weights, params.top_p), weights, np.float32(0))
    if params.min_p > 0.0:
        weights[weights < np.float32(params.min_p)] = 0
    return weights


def _top_k(logits: Floats, top_k: int) -> npt.NDArray[np.int64] | None:
    """Ids of the best, ascending; None for all."""
    return np.sort(best_tokens(logits, top_k)) if 0 < top_k < len(logits) else None


def _nucleus(weights: Floats, top_p: float) -> npt.NDArray[np.bool_]:
    """The fewest largest weights that hold `top_p` of the total; never none."""
    total = weights.sum(dtype=np.float64)
    # All that is below this together holds less than 1 - top_p, so none of it needs sorting.
    floor = (1.0 - top_p) * total / len(weights)
    candidates = np.flatnonzero(weights >= min(floor, 1.0))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    before = np.cumsum(weights[order], dtype=np.float64) - weights[order]
    kept = np.zeros(len(weights), np.bool_)
    kept[order[before < top_p * total]] = True
    return kept
