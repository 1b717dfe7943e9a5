"""Draws follow the rules exactly, and no row knows of another."""

from __future__ import annotations

import dataclasses
import random
from array import array
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.philox import Purpose, uniforms
from common.plan import ErrorCode, SamplingParams
from executor_service.runner.sampler import Sampled, SampleTask, draw_token, kept_weights, sample
from tests.support import slow_sampler
from tests.support.plans import make_spec

V = 400
PROMPT = [7, 7, 7, 9]
OUTPUTS = [5, 5]


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 1.0} | fields))


def task(
    sampling: SamplingParams,
    *,
    row: int = 0,
    index: int = 0,
    prompt: list[int] | None = None,
    outputs: list[int] | None = None,
) -> SampleTask:
    prompt = PROMPT if prompt is None else prompt
    outputs = OUTPUTS if outputs is None else outputs
    spec = make_spec(1, len(prompt), index=index, params=sampling)
    return SampleTask(
        spec=spec,
        row=row,
        position=len(prompt) + len(outputs),
        history=array("i", [*prompt, *outputs]),
    )


def logits_of(seed: int, rows: int = 1, vocabulary: int = V) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def one(logits: Tensor, sampling: SamplingParams, **parts: Any) -> int:
    (answer,) = sample(logits, [task(sampling, **parts)])
    assert isinstance(answer, Sampled)
    return answer.token


def uniform_of(sampling: SamplingParams, position: int, index: int = 0) -> float:
    return float(uniforms([sampling.seed], [position], [index], Purpose.SAMPLE)[0])


def random_params(rng: random.Random) -> SamplingParams:
    def some(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.5 else off

    return params(
        temperature=rng.choice((0.3, 0.8, 1.0, 1.7)),
        top_k=some(rng.choice((1, 2, 20, V - 1, V, V + 1)), 0),
        top_p=some(rng.choice((0.05, 0.5, 0.9, 0.999)), 1.0),
        min_p=some(rng.choice((0.001, 0.05, 0.5, 1.0)), 0.0),
        repetition_penalty=some(rng.choice((0.7, 1.3)), 1.0),
        presence_penalty=some(rng.uniform(-2, 2), 0.0),
        frequency_penalty=some(rng.uniform(-2, 2), 0.0),
        logit_bias=some(((3, 5.0), (9, -100.0), (11, 2.5)), ()),
        min_tokens=some(rng.choice((1, 2, 3, 9)), 0),
        stop_token_ids=some((5, 3, 50), ()),
        seed=rng.getrandbits(64),
    )


def test_draws_equal_a_plain_reimplementation() -> None:
    rng = random.Random(1)
    close_calls = 0
    for trial in range(600):
        sampling = random_params(rng)
        prompt = rng.choices(range(V), k=rng.randrange(1, 30))
        outputs = rng.choices(range(V), k=rng.randrange(0, 30))
        logits = logits_of(trial)
        values = slow_sampler.adjusted(logits[0].tolist(), sampling, prompt, outputs)
        probabilities = slow_sampler.distribution(values, sampling)
        uniform = uniform_of(sampling, len(prompt) + len(outputs))
        expected, margin = slow_sampler.draw(probabilities, uniform)
        found = one(logits, sampling, prompt=prompt, outputs=outputs)
        if margin < 1e-6:
            close_calls += 1
            continue
        assert found == expected, (trial, sampling)
    assert close_calls < 10


def test_frequencies_follow_the_distribution() -> None:
    """Chi-square over one logits row and many positions, for each way of truncating."""
    logits = logits_of(5, vocabulary=40) / 2
    for sampling in (
        params(),
        params(temperature=0.6, top_k=7),
        params(top_p=0.8),
        params(temperature=1.5, min_p=0.2),
    ):
        num_draws = 2000
        expected = slow_sampler.distribution(logits[0].tolist(), sampling)
        tasks = [task(sampling, outputs=[1] * i) for i in range(num_draws)]
        counts = Counter(a.token for a in sample(logits, tasks) if isinstance(a, Sampled))
        assert set(counts) <= set(expected)
        assert sum(counts.values()) == num_draws
        chi_square = sum(
            (counts[token] - num_draws * p) ** 2 / (num_draws * p) for token, p in expected.items()
        )
        freedom = len(expected) - 1
        assert chi_square < freedom + 4 * (2 * freedom) ** 0.5 + 4


def test_a_row_is_alone() -> None:
    rng = random.Random(3)
    logits = logits_of(6, rows=12)
    tasks = [task(random_params(rng), row=row, outputs=[row] * row) for row in range(12)]
    tasks[4] = task(params(temperature=0.0), row=4)
    together = sample(logits, tasks)
    for one_task, answer in zip(tasks, together, strict=True):
        alone = one_task._replace(row=0)
        assert sample(logits[one_task.row : one_task.row + 1], [alone]) == [answer]
    assert sample(logits, tasks[::-1]) == together[::-1]


def test_logits_are_left_as_they_were() -> None:
    logits = logits_of(7)
    before = logits.clone()
    one(logits, params(repetition_penalty=2.0, logit_bias=((1, 5.0),), top_p=0.5, top_k=5))
    assert torch.equal(logits, before)


def test_a_draw_depends_on_seed_position_and_index_alone() -> None:
    logits = torch.zeros(1, V)
    base = one(logits, params(seed=1))
    assert one(logits, params(seed=1)) == base
    assert one(logits, params(seed=2)) != base
    assert one(logits, params(seed=1 + 2**32)) != base
    assert one(logits, params(seed=1), outputs=[5, 5, 5]) != base
    assert one(logits, params(seed=1), index=1) != base
    assert base == int(uniform_of(params(seed=1), position=6) * V)


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-38, 1e-12, 1e-8, 1e-5])
def test_c49_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    for seed in range(20):
        logits = logits_of(seed) * 10
        assert one(logits, params(temperature=temperature, seed=seed)) == int(logits.argmax())


@pytest.mark.parametrize(
    "sampling",
    [
        params(temperature=1e-4),
        params(top_p=1e-4),
        params(top_p=1e-9),
        params(top_k=1),
        params(min_p=1.0),
    ],
)
def test_c49_a_vanishing_share_is_the_best_token(sampling: SamplingParams) -> None:
    for seed in range(20):
        logits = logits_of(seed)
        one_draw = one(logits, dataclasses.replace(sampling, seed=seed))
        assert one_draw == int(logits.argmax())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-8, 1e-38, 1e-45])
def test_c49_a_vanishing_temperature_is_greedy_on_half_precise_logits(
    temperature: float, dtype: torch.dtype
) -> None:
    """Such logits have ties, and large ones: 6e4 over 1e-45 is beyond float32."""
    for seed in range(20):
        logits = (logits_of(seed) * 5000).clamp(-6e4, 6e4).to(dtype).float()
        sampling = params(temperature=temperature, seed=seed, num_logprobs=1)
        (answer,) = sample(logits, [task(sampling)])
        assert isinstance(answer, Sampled)
        assert answer.token == int(logits.argmax())
        assert answer.logprobs is not None
        assert np.isfinite(answer.logprobs.logprobs).all()


def test_c52_penalties_come_before_temperature() -> None:
    """Two candidates 4 apart; a presence penalty of 2 leaves 2, which temperature 2 makes 1. The
    other order would leave 4 / 2 - 2 = 0, and half of the draws."""
    logits = torch.full((1, 12), -1e4)
    logits[0, 5], logits[0, 8] = 4.0, 0.0
    num_draws = 2000
    sampling = params(temperature=2.0, presence_penalty=2.0)
    tasks = [
        task(dataclasses.replace(sampling, seed=seed), outputs=[5, 5]) for seed in range(num_draws)
    ]
    drawn = [answer.token for answer in sample(logits, tasks) if isinstance(answer, Sampled)]
    assert set(drawn) == {5, 8}
    assert drawn.count(5) / num_draws == pytest.approx(1 / (1 + np.exp(-1)), abs=0.04)


@pytest.mark.parametrize("top_k", [V, V + 1, 9_999_999, 2**31 - 1])
def test_c50_a_top_k_of_the_vocabulary_or_more_is_off(top_k: int) -> None:
    for seed in range(50):
        off = params(seed=seed, temperature=3.0)
        assert one(logits_of(1), dataclasses.replace(off, top_k=top_k)) == one(logits_of(1), off)


@pytest.mark.parametrize("sampling", [params(temperature=0.0), params(top_k=1), params(top_p=1e-6)])
def test_of_equal_logits_the_lowest_id_wins(sampling: SamplingParams) -> None:
    logits = torch.zeros(1, V)
    logits[0, [50, 20, 300]] = 4.0
    assert one(logits, sampling) == 20


def test_ties_at_the_edge_of_top_k_keep_the_lower_ids() -> None:
    logits = torch.full((1, 6), -1.0)
    logits[0, [0, 2, 3, 5]] = 1.0
    drawn = {one(logits, params(top_k=3, seed=seed)) for seed in range(100)}
    assert drawn == {0, 2, 3}


def test_ties_at_the_edge_of_top_p_keep_the_lower_ids() -> None:
    weights = kept_weights(np.ones(6, np.float32), params(top_p=0.5))
    assert weights.tolist() == [1, 1, 1, 0, 0, 0]


def test_the_last_kept_token_takes_what_rounding_leaves() -> None:
    """A uniform beyond the rounded total must not run past the kept tokens."""
    logits = np.zeros(3, np.float32)
    assert draw_token(logits, params(top_k=2), np.float32(1.0)) == 1
    beyond = np.nextafter(np.float32(1), np.float32(2))
    assert draw_token(logits, params(), beyond) == 2
    logits[:] = (0.0, 0.0, -500.0)
    assert draw_token(logits, params(), beyond) == 1


def test_a_uniform_of_zero_never_draws_the_impossible() -> None:
    logits = np.array([-np.inf, -1000.0, 0.0, 0.0], np.float32)
    assert draw_token(logits, params(), np.float32(0)) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [params(temperature=0.0), params(), params(top_k=3)])
def test_a_row_that_is_not_finite_fails_alone(value: float, sampling: SamplingParams) -> None:
    logits = logits_of(8, rows=3)
    expected = sample(logits, [task(sampling, row=0), task(sampling, row=2)])
    logits[1, 17] = value
    answers = sample(logits, [task(sampling, row=row) for row in range(3)])
    assert answers[1] == ErrorCode.NON_FINITE
    assert [answers[0], answers[2]] == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_candidate_left_is_an_error_of_its_row(temperature: float) -> None:
    sampling = params(temperature=temperature, min_tokens=9, stop_token_ids=tuple(range(V)))
    answers = sample(logits_of(9), [task(sampling), task(params(temperature=0.0))])
    assert answers[0] == ErrorCode.NO_CANDIDATE
    assert isinstance(answers[1], Sampled)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "rule", [{"logit_bias": ((5, 1e300),)}, {"repetition_penalty": 1e-45}, {"min_p": 1.0}]
)
def test_absurd_rules_never_give_a_wrong_token(temperature: float, rule: dict[str, Any]) -> None:
    (answer,) = sample(logits_of(10) + 20, [task(params(temperature=temperature, **rule))])
    if "min_p" in rule:
        assert isinstance(answer, Sampled)
    else:
        assert answer == ErrorCode.NON_FINITE


def test_c47_ends_are_masked_until_min_tokens_and_no_longer() -> None:
    logits = torch.zeros(1, V)
    logits[0, 33] = 50.0
    for temperature in (0.0, 1.0):
        sampling = params(temperature=temperature, min_tokens=3, stop_token_ids=(33, 34))
        assert one(logits, sampling, outputs=[1, 1]) not in (33, 34)
        assert one(logits, sampling, outputs=[1, 1, 1]) == 33
