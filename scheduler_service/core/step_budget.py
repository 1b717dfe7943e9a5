"""How many tokens one step may take, and how many of them may be prompt while others decode.

A step lasts as long for a decode as for everything planned beside it, so a long prompt stalls every
stream. With known costs, prompts get what keeps the step within `max_decode_stall` times what it
would be if all sequences with a place decoded; without decodes, or without costs, they get the
whole budget.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scheduler_service.core.limits import SchedulerLimits

_LEAST = 1e-12
"""Seconds; so that some token is always allowed."""


class StepCosts(NamedTuple):
    """What a step takes on the executor, in seconds of any one unit."""

    step: float
    token: float
    """Each token computed."""
    attended: float
    """Each position that a token attends to."""
    beside: float = 1.0
    """What prompts add to a step with decodes, over what their tokens and positions tell."""

    def of(self, num_tokens: float, num_attended: float) -> float:
        return self.step + self.token * num_tokens + self.attended * num_attended


class StepBudget:
    """What is left of one step in the making."""

    __slots__ = ("_allowance", "_costs", "tokens")

    def __init__(self, limits: SchedulerLimits) -> None:
        self.tokens = limits.max_num_batched_tokens
        """Of any kind."""
        self._costs: StepCosts | None = None
        self._allowance = math.inf

    def take_decodes(self, count: int) -> None:
        self.tokens -= count

    def bound_prompts(self, costs: StepCosts, max_stall: float, decodes: DecodeLoad) -> None:
        """From here on prompt tokens are paid for. To be called once all decodes are planned."""
        self._costs = costs
        allowance = max_stall * decodes.full_step(costs) - decodes.step(costs)
        self._allowance = max(allowance / costs.beside, _LEAST)

    @property
    def is_spent(self) -> bool:
        return self.tokens == 0 or self._allowance <= 0.0

    def prompt_tokens(self, start: int, wanted: int) -> int:
        """Of `wanted` tokens from position `start` on, those there is budget for; at least one
        unless the budget is spent, so that a prompt in progress always progresses."""
        if self.is_spent:
            return 0
        most = min(wanted, self.tokens)
        costs = self._costs
        if costs is None or self._prompt_cost(costs, start, most) <= self._allowance:
            return most
        # length * token + attended * (length * start + length^2 / 2) = allowance
        linear = costs.token + costs.attended * start
        root = math.sqrt(linear * linear + 2.0 * costs.attended * self._allowance)
        return max(1, min(most, int(2.0 * self._allowance / (linear + root))))

    def take_prompt(self, start: int, length: int) -> None:
        self.tokens -= length
        if self._costs is not None:
            self._allowance -= self._prompt_cost(self._costs, start, length)

    @staticmethod
    def _prompt_cost(costs: StepCosts, start: int, length: int) -> float:
        return costs.token * length + costs.attended * length * (start + 0.5 * length)


class DecodeLoad(NamedTuple):
    """The decodes of a step, and how many there would be if all who wait for a place decoded."""

    num_decodes: int
    num_attended: int
    """By all of them together."""
    num_sequences: int
    """Decodes, prompts in progress, and those waiting for whom there is a place. Measuring the
    stall against them keeps an almost idle executor from starving a burst of prompts to spare its
    first few streams."""

    def step(self, costs: StepCosts) -> float:
        return costs.of(self.num_decodes, self.num_attended)

    def full_step(self, costs: StepCosts) -> float:
        share = self.num_sequences / self.num_decodes
        return costs.of(self.num_sequences, self.num_attended * share)
