"""The sampling rules once more, token by token in float64: slow, plain, written from the rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.plan import SamplingParams

Doubles = npt.NDArray[np.float64]


def adjusted(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], outputs: Sequence[int]
) -> list[float]:
    values = [float(x) for x in logits]
    for token, bias in params.logit_bias:
        values[token] += bias
    for token in set(prompt) | set(outputs):
        penalty = params.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token in set(outputs):
        values[token] -= params.presence_penalty
        values[token] -= params.frequency_penalty * list(outputs).count(token)
    if len(outputs) < params.min_tokens:
        for token in params.stop_token_ids:
            values[token] = -math.inf
    return values


def distribution(values: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """Probability of each token that may be drawn, ascending by id."""
    peak = max(values)
    weights = {i: math.exp((x - peak) / params.temperature) for i, x in enumerate(values)}
    ranked = sorted(weights, key=lambda i: (-values[i], i))
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.top_p < 1:
        total, mass, kept = sum(weights[i] for i in ranked), 0.0, []
        for token in ranked:
            if mass >= params.top_p * total:
                break
            kept.append(token)
            mass += weights[token]
        ranked = kept
    ranked = [i for i in ranked if weights[i] >= params.min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in ranked)
    return {i: weights[i] / total for i in sorted(ranked) if weights[i] / total > 1e-38}


def draw(probabilities: dict[int, float], uniform: float) -> tuple[int, float]:
    """The token at `uniform`, and how far that is from the nearest edge of its share."""
    mass = 0.0
    for token, probability in probabilities.items():
        if mass + probability >= uniform:
            return token, min(mass + probability - uniform, uniform - mass)
        mass += probability
    return list(probabilities)[-1], 0.0
