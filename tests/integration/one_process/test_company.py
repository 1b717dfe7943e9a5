"""An answer does not depend on who runs beside it, when, or how its steps were cut.

The reference of each request: that request alone, in one chunk, without the prefix cache. C numbers
name acceptance cases.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from common.plan import SamplingParams
from executor_service.runner.model_runner import ModelRunner
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.request import Request
from tests.integration.settings import BLOCK_SIZE, Setting
from tests.support.builders import make_limits, make_request, random_ids
from tests.support.in_process_engine import Arrival, InProcessEngine
from tests.support.one_process import OneProcess, until
from tests.support.tiny_llama import VOCAB_SIZE

_LONG: dict[str, Any] = {"max_tokens": 64, "ignore_eos": True}
_SEEDED = {
    "prompt": "The colour of fresh grass is",
    "seed": 42,
    "temperature": 0.8,
    "max_tokens": 16,
    "ignore_eos": True,
}
_NEIGHBOURS: dict[str, list[dict[str, Any]]] = {
    "one without a seed": [{}],
    "one with a seed": [{"seed": 7}],
    "one greedy": [{"temperature": 0}],
    "five mixed": [{}, {"seed": 7}, {"temperature": 0}, {"seed": 42}, {"top_k": 5}],
}


@pytest.mark.parametrize("neighbours", _NEIGHBOURS)
async def test_c25_a_seeded_answer_is_the_same_beside_any_neighbour(
    whole: OneProcess, neighbours: str
) -> None:
    rng = random.Random(neighbours)
    alone = await whole.token_ids(**_SEEDED)
    for repeat in range(4):
        others = [
            asyncio.create_task(
                whole.token_ids(prompt=random_ids(i, 9 + 7 * i, VOCAB_SIZE), **_LONG, **fields)
            )
            for i, fields in enumerate(_NEIGHBOURS[neighbours])
        ]
        start = whole.runner.num_steps + rng.randrange(1, 30)
        await until(lambda start=start: whole.runner.num_steps >= start)
        assert await whole.token_ids(**_SEEDED) == alone, repeat
        await asyncio.gather(*others)
    shared = [plan for plan in whole.runner.plans if plan.num_chunks > len(_NEIGHBOURS[neighbours])]
    assert len(shared) > 16, "they never ran side by side"


def _setting(batch: int, budget: int, cache: Any) -> Setting:
    return Setting(batch, budget, cache, 2, "ample")


_ALONE = Setting(1, 512, "off", 1, "ample")
_TOGETHER = [
    _setting(1, 16, "on"),
    _setting(2, 64, "off"),
    _setting(5, 512, "on"),
    _setting(8, 16, "off"),
    _setting(8, 64, "on"),
]
_LONGEST = 400
_LENGTHS = (5, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 90, 112, 128, 150, 200, 257, 300)


def _greedy_requests() -> list[Request]:
    """Twenty prompts of 5 to 300 tokens; every fourth begins like the one before it."""
    prompts = [random_ids(i, length, VOCAB_SIZE) for i, length in enumerate(_LENGTHS)]
    for i in range(3, len(prompts), 4):
        shared = len(prompts[i - 1]) // 2
        prompts[i][:shared] = prompts[i - 1][:shared]
    return [make_request(f"r{i}", prompt, max_tokens=64) for i, prompt in enumerate(prompts)]


def _answers(
    setting: Setting, runner: ModelRunner, requests: Sequence[Request]
) -> dict[SequenceKey, list[int]]:
    """They join three turns apart, unless one place makes them wait for each other anyway."""
    limits = setting.limits(
        num_blocks=setting.batch * _LONGEST // BLOCK_SIZE + 25,
        longest=_LONGEST,
        vocab_size=VOCAB_SIZE,
        max_model_len=runner.spec.max_model_len,
    )
    engine = InProcessEngine(limits, runner)
    apart = 0 if setting.batch == 1 else 3
    engine.run([Arrival(i * apart, request) for i, request in enumerate(requests)])
    return {key: choice.token_ids for key, choice in engine.choices.items()}


@pytest.fixture(scope="module")
def alone(small_model: ModelRunner) -> dict[SequenceKey, list[int]]:
    """The answer of each of the twenty."""
    answers: dict[SequenceKey, list[int]] = {}
    for request in _greedy_requests():
        answers |= _answers(_ALONE, small_model, [request])
    return answers


@pytest.mark.parametrize(
    "setting",
    [pytest.param(s, marks=[pytest.mark.slow] if s.batch < 5 else []) for s in _TOGETHER],
    ids=str,
)
def test_c28_greedy_answers_do_not_change_with_batch_chunks_or_cache(
    runner: ModelRunner, alone: dict[SequenceKey, list[int]], setting: Setting
) -> None:
    found = _answers(setting, runner, _greedy_requests())
    assert {len(tokens) for tokens in found.values()} == {64}
    different = [key.request_id for key in alone if found[key] != alone[key]]
    assert different == []


def test_c53_penalties_do_not_depend_on_how_the_prompt_was_computed(runner: ModelRunner) -> None:
    """Cold, from the cache, with the cache off, after a preemption, and in three chunks."""
    params = SamplingParams(temperature=0.0, repetition_penalty=1.3)

    def ask(name: str) -> Request:
        prompt = array("i", random_ids(53, 48, VOCAB_SIZE))
        return Request(request_id=name, prompt_token_ids=prompt, params=params, max_tokens=40)

    def engine(**limits: Any) -> InProcessEngine:
        wide = {"num_blocks": 24, "max_num_batched_tokens": 512, "vocab_size": VOCAB_SIZE}
        return InProcessEngine(make_limits(**(wide | limits)), runner)

    cached, uncached = engine(), engine(enable_prefix_caching=False)
    in_chunks, preempted = engine(max_num_batched_tokens=16), engine()
    for run, name in (
        (cached, "cold"),
        (cached, "hit"),
        (uncached, "cache off"),
        (in_chunks, "three chunks"),
    ):
        run.run([Arrival(0, ask(name))])
    beside = make_request("beside", random_ids(1, 20, VOCAB_SIZE), max_tokens=60)
    preempted.run([Arrival(0, beside), Arrival(1, ask("preempted"))], preempt_every=9)

    assert cached.choices[SequenceKey("hit", 0)].num_cached_tokens == 32
    assert preempted.scheduler.counters.num_preemptions > 0
    answers = {
        key.request_id: choice.token_ids
        for run in (cached, uncached, in_chunks, preempted)
        for key, choice in run.choices.items()
    }
    del answers["beside"]
    assert len(answers) == 5
    assert all(tokens == answers["cold"] for tokens in answers.values()), answers
    plain = make_request("plain", random_ids(53, 48, VOCAB_SIZE), max_tokens=40)
    cached.run([Arrival(0, plain)])
    assert cached.choices[SequenceKey("plain", 0)].token_ids != answers["cold"]
