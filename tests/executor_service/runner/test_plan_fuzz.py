"""Random plans, many of them wrong: nothing inconsistent runs, and nobody else notices."""

from __future__ import annotations

import random
from typing import Any

import pytest

from common.plan import SamplingParams
from executor_service.runner.model_runner import ModelRunner
from tests.support.plan_fuzz import Ask, PlanFuzzer
from tests.support.tiny_llama import VOCAB_SIZE
from tests.support.tiny_runner import generate

_NUM_ASKS = 24


def asks_of(runner: ModelRunner) -> list[Ask]:
    rng = random.Random(5)
    asks = []
    for seed in range(_NUM_ASKS):
        prompt = rng.choices(range(VOCAB_SIZE), k=rng.choice((1, 3, 15, 16, 17, 40)))
        rules: dict[str, Any] = rng.choice(
            [{"temperature": 0.0}, {"seed": seed}, {"seed": seed, "top_p": 0.9, "top_k": 40}]
        )
        if rng.random() < 0.3:
            rules["repetition_penalty"] = 1.2
        params = SamplingParams(**rules)
        outputs = generate(runner, [(prompt, params)], rng.randint(2, 20))[0]
        asks.append(Ask(tuple(prompt), params, tuple(outputs)))
    return asks


def fuzz(runner: ModelRunner, seed: int, num_plans: int) -> None:
    fuzzer = PlanFuzzer(runner, asks_of(runner), seed)
    for _ in range(num_plans):
        fuzzer.step()
    assert fuzzer.num_faults > num_plans / 5


@pytest.mark.parametrize("seed", range(3))
def test_wrong_plans_cost_those_they_concern_a_step_and_others_nothing(
    runner: ModelRunner, seed: int
) -> None:
    fuzz(runner, seed, 400)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_hundred_thousand_plans(runner: ModelRunner, seed: int) -> None:
    fuzz(runner, seed, 10_000)
