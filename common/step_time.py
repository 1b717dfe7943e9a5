"""What a step takes on one executor, learned from the steps it has run.

A step costs something for itself (reading the weights), for each token, and for each position that
a token attends to. Observations are averaged by the size of their step, so that what long prompts
cost is not forgotten during hours of decoding, and the three costs are the non-negative least
squares over these averages, each weighted to count by its relative error.

Three costs do not describe steps of every size, and where it matters most, beside decodes, prompts
may take half of what they tell: so that is learned apart, from the last such steps.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

WARM_STEPS = 16
"""Observations before there is a prediction: first steps compile and allocate."""

_SMOOTHING = 0.1
_REFIT_EVERY = 128
"""Observations, and twice as many as there were while these are fewer. A fit takes a millisecond or
three of a step loop that has to plan meanwhile."""
_BESIDE_SMOOTHING = 0.1
_BESIDE_LEAST = 0.25
_BESIDE_GROWTH = 1.5
"""What one step may show over what is known: one that was held up says little of prompts."""
_MAX_RATIO = 4.0
"""A step that took longer than so many times its like was held up by something else."""
_FULL_WEIGHT = 16
"""Observations that make an average count fully."""

_HALF_LIFE = 64
"""Observations until an average that none of them changed counts half."""
_LEAST_TRUST = 1e-3
"""Old ones still tell apart what newer ones cannot."""
_LEAST_S = 1e-9
_RCOND = 1e-6
"""Below it two costs cannot be told apart."""
_BETTER = 0.999
_SUBSETS = [list(used) for count in (1, 2, 3) for used in combinations(range(3), count)]


class StepTime(NamedTuple):
    """Seconds: for a step, for each token, for each attended position."""

    step_s: float
    token_s: float
    attended_s: float
    beside: float = 1.0
    """What prompts add to a step with decodes, over what their tokens and positions tell."""

    def predict_s(self, num_tokens: int, num_attended: int) -> float:
        return self.step_s + self.token_s * num_tokens + self.attended_s * num_attended


@dataclass(slots=True)
class _Average:
    """Steps of about the same size."""

    num_tokens: float
    num_attended: float
    took_s: float
    last: int
    """The observation that changed it last."""
    count: int = 1

    def add(self, number: int, num_tokens: int, num_attended: int, took_s: float) -> None:
        self.last = number
        self.count += 1
        weight = max(_SMOOTHING, 1.0 / self.count)
        self.num_tokens += weight * (num_tokens - self.num_tokens)
        self.num_attended += weight * (num_attended - self.num_attended)
        self.took_s += weight * (min(took_s, _MAX_RATIO * self.took_s) - self.took_s)


class StepTimeModel:
    """Of one incarnation of one executor."""

    def __init__(self) -> None:
        self._averages: dict[tuple[int, int], _Average] = {}
        self._num_observed = 0
        self._fit_at = WARM_STEPS
        self._fitted: StepTime | None = None

    @property
    def fitted(self) -> StepTime | None:
        """None until it is warm."""
        return self._fitted

    def observe(
        self, num_tokens: int, num_attended: int, took_s: float, decodes: tuple[int, int] = (0, 0)
    ) -> bool:
        """A step of `num_tokens` >= 1 ended. Whether `fitted` has changed.

        decodes: how many of the tokens decode, and the positions that these attend to.
        """
        known = self._fitted
        if known is not None and 0 < decodes[0] < num_tokens:
            self._learn_beside(known, (num_tokens, num_attended), took_s, decodes)
        self._average(num_tokens, num_attended, took_s)
        return self._fitted is not known

    def _learn_beside(
        self, known: StepTime, whole: tuple[int, int], took_s: float, decodes: tuple[int, int]
    ) -> None:
        alone_s = known.predict_s(*decodes)
        told_s = max(known.predict_s(*whole) - alone_s, _LEAST_S)
        ratio = max(min((took_s - alone_s) / told_s, known.beside * _BESIDE_GROWTH), _BESIDE_LEAST)
        beside = known.beside + _BESIDE_SMOOTHING * (ratio - known.beside)
        self._fitted = known._replace(beside=beside)

    def _average(self, num_tokens: int, num_attended: int, took_s: float) -> None:
        self._num_observed += 1
        size = num_tokens.bit_length(), (num_attended // num_tokens).bit_length()
        average = self._averages.get(size)
        if average is None:
            self._averages[size] = _Average(
                num_tokens, num_attended, took_s, last=self._num_observed
            )
        else:
            average.add(self._num_observed, num_tokens, num_attended, took_s)
        if self._num_observed >= self._fit_at:
            self._fit_at += min(self._num_observed, _REFIT_EVERY)
            self._fitted = StepTime(*_fit(self._averages.values(), self._num_observed))


def _fit(averages: Collection[_Average], now: int) -> tuple[float, float, float]:
    """The best of the fits by some of the three costs that has no negative one."""
    rows = [(1.0, average.num_tokens, average.num_attended) for average in averages]
    took_s = np.array([average.took_s for average in averages])
    counts = np.minimum([average.count for average in averages], _FULL_WEIGHT)
    ages = now - np.array([average.last for average in averages])
    trust = counts * np.maximum(0.5 ** (ages / _HALF_LIFE), _LEAST_TRUST)
    # Dividing by the time makes errors relative.
    weights = np.sqrt(trust) / np.maximum(took_s, _LEAST_S)
    targets = weights * took_s
    features = weights[:, None] * np.array(rows)
    scales = np.linalg.norm(features, axis=0)
    best, least = np.zeros(3), float("inf")
    for used in _SUBSETS:
        scaled = features[:, used] / scales[used]
        solution, _, rank, _ = np.linalg.lstsq(scaled, targets, rcond=_RCOND)
        error = float(np.sum((scaled @ solution - targets) ** 2))
        # Fewer costs come first, and more must be worth it.
        if rank == len(used) and solution.min() >= 0.0 and error < least * _BETTER:
            best, least = np.zeros(3), error
            best[used] = solution / scales[used]
    return float(best[0]), float(best[1]), float(best[2])
