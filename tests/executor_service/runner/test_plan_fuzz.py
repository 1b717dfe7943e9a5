"""Random plans, many of them wrong: nothing inconsistent runs, and nobody else notices."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from common.plan import SamplingParams, StepPlan
from executor_service.runner.model_runner import ModelRunner
from tests.support.fuzzed_sequences import Ask
from tests.support.native_library import native_library
from tests.support.plan_faults import (
    FAULTS,
    Expected,
    Fault,
    Scene,
    inject,
    poisoned_read,
    wrong_params,
    wrong_token,
)
from tests.support.plan_fuzz import PlanFuzzer
from tests.support.plans import add_chunk, make_spec
from tests.support.poisoned_blocks import PoisonedBlocks
from tests.support.tiny_llama import VOCAB_SIZE, save_tiny, tiny_model
from tests.support.tiny_runner import Driver, tiny_runner

_NUM_ASKS = 24
_STEMS = (16, 33, 150)
"""Tokens that prompts have in common; so many that a kernel reads them once for several."""

RUNNERS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16 KV": {"kv_cache_dtype": "bfloat16"},
    "float16 KV": {"kv_cache_dtype": "float16"},
    "int8 KV": {"kv_cache_dtype": "int8"},
    "q4_1": {"quantization": "q4_1"},
    "int8": {"quantization": "int8"},
    "3 threads": {"threads": 3},
    "torch": {},
}


@pytest.fixture(scope="module", params=RUNNERS)
def fuzzed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelRunner]:
    num_threads = torch.get_num_threads()
    directory = save_tiny(tiny_model("llama"), tmp_path_factory.mktemp("model"))
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setitem(os.environ, "OCTAVO_NATIVE", "0")
        else:
            native_library()
        yield tiny_runner(directory, **RUNNERS[request.param])
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def asks(fuzzed: ModelRunner) -> list[Ask]:
    rng = random.Random(5)
    stems = [rng.choices(range(VOCAB_SIZE), k=length) for length in _STEMS]
    asks = []
    for seed in range(_NUM_ASKS):
        stem = rng.choice(stems) if rng.random() < 0.6 else []
        prompt = stem + rng.choices(range(VOCAB_SIZE), k=rng.choice((1, 3, 15, 16, 17, 40)))
        rules: dict[str, Any] = rng.choice(
            [{"temperature": 0.0}, {"seed": seed}, {"seed": seed, "top_p": 0.9, "top_k": 40}]
        )
        if rng.random() < 0.3:
            rules["repetition_penalty"] = 1.2
        params = SamplingParams(**rules)
        num_outputs = rng.randint(2, 20)
        choices = [
            alone(fuzzed, prompt, params, index, num_outputs)
            for index in range(rng.choice((1, 1, 2, 3)))
        ]
        asks.append(Ask(tuple(prompt), params, tuple(choices)))
    assert any(len(set(ask.choices)) == 3 for ask in asks), "choices differ by their index"
    return asks


def alone(
    runner: ModelRunner, prompt: list[int], params: SamplingParams, index: int, num_outputs: int
) -> tuple[int, ...]:
    driver = Driver(runner)
    sequence = driver.start(prompt, params, num_outputs, index)
    driver.run([sequence], num_outputs)
    assert not sequence.errors
    return tuple(sequence.outputs)


def fuzz(runner: ModelRunner, asks: list[Ask], seed: int, num_plans: int) -> None:
    runner.forget_samples()
    fuzzer = PlanFuzzer(runner, asks, seed)
    for _ in range(num_plans):
        fuzzer.step()
    assert fuzzer.num_faults > num_plans / 5
    kinds = {"in flight", "doomed", "fork", "shared prefix", "copy"}
    assert set(fuzzer.seen) == kinds | {fault.__name__ for fault in FAULTS}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_counts_where_it_changes_the_plan(fuzzed: ModelRunner, fault: Fault) -> None:
    """Here the one token is in flight, nothing is sampled and no block was read before."""
    rng, plan = random.Random(1), StepPlan(step_id=1)
    add_chunk(plan, make_spec(1, 1), [5], [3], start=1, length=1)
    scene = Scene(rng, fuzzed.spec, PoisonedBlocks(fuzzed.pool, rng), plan, Expected())
    assert inject(fault, scene) == (fault not in (wrong_token, wrong_params, poisoned_read))


@pytest.mark.parametrize("seed", range(2))
def test_wrong_plans_cost_those_they_concern_a_step_and_others_nothing(
    fuzzed: ModelRunner, asks: list[Ask], seed: int
) -> None:
    fuzz(fuzzed, asks, seed, 300)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_plans(fuzzed: ModelRunner, asks: list[Ask]) -> None:
    fuzz(fuzzed, asks, 100, 100_000 // len(RUNNERS))
