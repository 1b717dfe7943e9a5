"""Native draws are those of the sampler that is written to be read."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import common
from common.philox import Purpose
from common.plan import ErrorCode, SamplingParams, SequenceId, SequenceSpec
from executor_service.kernels.native import build
from executor_service.kernels.native.sampling import TokenDraws
from executor_service.runner.native_sampler import NativeSampler
from executor_service.runner.sampler import Logits, Sampled, SampleTask, sample
from tests.support.native_library import block_maxima, native_library
from tests.support.plans import make_spec

LEVELS = [level for level in build.LEVELS if level.needs <= build.usable_flags()]
VOCABULARY = 5003


Sampler = Callable[[Tensor, Sequence[SampleTask]], list[Sampled | ErrorCode]]


def sampler_of(level: build.Level, vocabulary: int, threads: int = 2) -> Sampler:
    """Finds the maxima of logits itself."""
    sampler = NativeSampler(TokenDraws(native_library(level), vocabulary, threads))
    return lambda logits, tasks: sampler(Logits(logits), tasks)


def sampler_given_maxima(level: build.Level) -> Sampler:
    library = native_library(level)
    sampler = NativeSampler(TokenDraws(library, VOCABULARY, 2))
    return lambda logits, tasks: sampler(Logits(logits, block_maxima(library, logits)), tasks)


@pytest.fixture(params=["given", "found"])
def maxima(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LEVELS, ids=lambda level: level.name)
def native(request: pytest.FixtureRequest, maxima: str) -> Sampler:
    if maxima == "given":
        return sampler_given_maxima(request.param)
    return sampler_of(request.param, VOCABULARY)


def random_params(rng: random.Random) -> SamplingParams:
    def some(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.5 else off

    tokens = [rng.randrange(VOCABULARY) for _ in range(4)]
    return SamplingParams(
        temperature=rng.choice((0.0, 0.3, 0.8, 1.0, 1.7)),
        top_k=some(rng.choice((1, 2, 20, 600, 2000, VOCABULARY - 1, VOCABULARY + 1)), 0),
        top_p=some(rng.choice((1e-6, 0.05, 0.5, 0.9, 0.999)), 1.0),
        min_p=some(rng.choice((0.001, 0.05, 0.5, 1.0)), 0.0),
        repetition_penalty=some(rng.choice((0.7, 1.3)), 1.0),
        presence_penalty=some(rng.uniform(-2, 2), 0.0),
        frequency_penalty=some(rng.uniform(-2, 2), 0.0),
        logit_bias=some(((tokens[0], 5.0), (tokens[1], -100.0), (tokens[0], 2.5)), ()),
        min_tokens=some(rng.choice((1, 3, 9)), 0),
        stop_token_ids=some(tuple(tokens[1:]), ()),
        seed=rng.getrandbits(64),
        num_logprobs=some(3, None),
    )


def random_task(rng: random.Random, row: int) -> SampleTask:
    prompt, outputs = rng.randrange(1, 40), rng.randrange(0, 12)
    history = [rng.randrange(VOCABULARY) % 97 for _ in range(prompt + outputs)]
    spec = make_spec(1, prompt, index=rng.randrange(3), params=random_params(rng))
    return SampleTask(spec=spec, row=row, position=len(history), history=array("i", history))


def logits_of(kind: str, rows: int) -> Tensor:
    x = torch.randn(rows, VOCABULARY)
    if kind == "peaked":
        return x * 12
    if kind == "ties":
        return (x * 2).round()
    if kind == "equal":
        return torch.full_like(x, -3.0)
    if kind == "masked":
        return torch.where(x > 2, x, -torch.inf)
    return x * 3


@pytest.mark.parametrize("kind", ["normal", "peaked", "ties", "equal", "masked"])
def test_draws_equal_the_plain_sampler(native: Sampler, kind: str) -> None:
    """A weight may differ in its last bit, so a draw at the very edge of one may too."""
    torch.manual_seed(7)
    rng = random.Random(kind)
    different = 0
    for _ in range(12):
        tasks = [random_task(rng, row % 20) for row in range(33)]
        logits = logits_of(kind, 20)
        before = logits.clone()
        found, expected = native(logits, tasks), sample(logits, tasks)
        assert torch.equal(logits, before)
        different += sum(a != b for a, b in zip(found, expected, strict=True))
    assert different <= 1


def test_greedy_takes_the_first_of_equal_logits(native: Sampler) -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [4000, 4999, 5002]] = 1.0
    spec = make_spec(1, 1, params=SamplingParams(temperature=0.0))
    task = SampleTask(spec=spec, row=0, position=1, history=array("i", [1]))
    assert native(logits, [task]) == [Sampled(token=4000)]
    logits[0, 5001] = 2.0
    assert native(logits, [task]) == [Sampled(token=5001)]


def test_rows_without_a_distribution_are_errors_of_their_own(native: Sampler) -> None:
    inf = float("inf")
    logits = torch.randn(6, VOCABULARY)
    logits[1, VOCABULARY - 1] = float("nan")
    logits[2, 17] = inf
    logits[3] = -inf
    spec = make_spec(1, 1, params=SamplingParams(seed=3))
    banned = SamplingParams(
        seed=3, min_tokens=9, stop_token_ids=tuple(range(VOCABULARY)), num_logprobs=1
    )
    overflow = SamplingParams(seed=3, logit_bias=((8, 3e38), (8, 3e38)))
    specs = [spec] * 4 + [dataclasses.replace(spec, params=p) for p in (banned, overflow)]
    history = array("i", [1])
    tasks = [SampleTask(spec=s, row=i, position=1, history=history) for i, s in enumerate(specs)]
    found = native(logits, tasks)
    bad, none = ErrorCode.NON_FINITE, ErrorCode.NO_CANDIDATE
    assert isinstance(found[0], Sampled)
    assert found[1:] == [bad, bad, bad, none, bad]
    assert native(logits[:1], tasks[:1]) == found[:1]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_draws_do_not_depend_on_threads_or_company(level: build.Level) -> None:
    torch.manual_seed(3)
    rng = random.Random(5)
    logits = logits_of("normal", 24)
    tasks = [random_task(rng, row) for row in range(24)]
    whole = sampler_of(level, VOCABULARY, threads=3)(logits, tasks)
    single = sampler_of(level, VOCABULARY, threads=1)
    assert [single(logits, [task])[0] for task in tasks] == whole
    assert single(logits, tasks[::-1])[::-1] == whole


VECTORS = [
    vector
    for vector in json.loads((Path(common.__file__).parent / "philox_vectors.json").read_text())
    if vector["purpose"] == Purpose.SAMPLE and 0 < vector["position"] < 10_000
]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_random_numbers_are_those_of_the_vectors(level: build.Level) -> None:
    """Of equal logits over 2^12 tokens the draw tells the leading bits of the uniform."""
    native = sampler_of(level, 1 << 12)
    assert len(VECTORS) > 3
    for vector in VECTORS:
        params = SamplingParams(seed=int(vector["seed"]))
        spec = make_spec(1, 1, index=vector["index"], params=params)
        history = array("i", [1]) * vector["position"]
        task = SampleTask(spec=spec, row=0, position=len(history), history=history)
        (answer,) = native(torch.zeros(1, 1 << 12), [task])
        assert answer == Sampled(token=max(0, math.ceil(vector["uniform_times_2_24"] / 2**12) - 1))


WIDE = [level for level in LEVELS if level.name in ("amx", "avx512")]


@pytest.mark.skipif(not WIDE, reason="the seed is for sums of 16 lanes")
def test_what_has_no_weight_is_not_drawn_where_a_sum_is_rounded() -> None:
    """The uniform of this seed lies between a block's sum as it is added in lanes and in order."""
    rng, block = np.random.default_rng(0), 128
    for _ in range(5):
        logits = np.full((1, 3 * block), -np.inf, np.float32)
        logits[0, :block] = rng.normal(0, 1, block)
        logits[0, 2 * block + 5] = rng.uniform(-12, 3)
    params = SamplingParams(temperature=1.0, seed=532631)
    spec = SequenceSpec(sequence_id=SequenceId(1), index=0, num_prompt_tokens=5, params=params)
    task = SampleTask(spec=spec, row=0, position=5, history=array("i"))
    (found,) = sampler_of(WIDE[0], 3 * block, threads=1)(torch.from_numpy(logits), [task])
    assert isinstance(found, Sampled)
    assert logits[0, found.token] > -np.inf
