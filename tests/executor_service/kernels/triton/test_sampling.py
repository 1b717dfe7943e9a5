"""Drawing on the device means what the sampler on the host means, token for token."""

from __future__ import annotations

import random
from array import array
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from common.plan import ErrorCode, SamplingParams, SequenceId, SequenceSpec
from executor_service.kernels.transfers import upload_now
from executor_service.runner.device_sampler import DrawTask, answers, launch_draws
from executor_service.runner.sampler import Sampled, SampleTask, sample

VOCAB_SIZE = 1000
NUM_PROMPT = 12

RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "cold": {"temperature": 0.2},
    "top-k": {"top_k": 7},
    "top-k of one": {"top_k": 1},
    "top-k of more than all": {"top_k": 5000},
    "top-p": {"top_p": 0.8},
    "top-p of nearly nothing": {"top_p": 1e-6},
    "top-p of nearly all": {"top_p": 0.999999},
    "min-p": {"min_p": 0.02},
    "all": {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "penalties": {
        "repetition_penalty": 1.4,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.3,
    },
    "repetition alone": {"repetition_penalty": 0.5},
    "bias": {"logit_bias": ((3, 6.0), (900, 5.5), (17, -100.0)), "temperature": 0.0},
    "min_tokens": {
        "min_tokens": 1000,
        "stop_token_ids": tuple(range(0, VOCAB_SIZE, 2)),
        "top_k": 30,
    },
}


def task(row: int, choose: random.Random, **rules: Any) -> SampleTask:
    params = SamplingParams(seed=choose.randrange(2**64), **rules)
    spec = SequenceSpec(
        sequence_id=SequenceId(row), index=row % 3, num_prompt_tokens=NUM_PROMPT, params=params
    )
    history = array("i", choose.choices(range(VOCAB_SIZE), k=NUM_PROMPT + 20 + row))
    return SampleTask(spec=spec, row=row, history=history)


def sample_on_device(logits: torch.Tensor, tasks: list[SampleTask]) -> list[Sampled | ErrorCode]:
    draws = [
        DrawTask(spec=t.spec, row=t.row, position=len(t.history), history=t.history) for t in tasks
    ]
    drawn = launch_draws(logits, draws, partial(upload_now, device=logits.device))
    scored = [t.row for t in tasks if t.spec.params.num_logprobs is not None]
    return answers(drawn.cpu().numpy(), draws, list(logits[scored].cpu().numpy()))


def peaked(num_rows: int, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("name", RULES)
def test_draws_the_token_the_host_draws(name: str, device: torch.device) -> None:
    choose = random.Random(name)
    logits = peaked(2, len(name))
    # Many equal values, so that an edge falls between equals.
    logits[1] = logits[1].round()
    tasks = [task(row, choose, **RULES[name]) for row in (0, 1)]
    before = logits.clone()
    found = sample_on_device(logits.to(device), tasks)
    assert found == sample(logits, tasks)
    assert torch.equal(logits, before)


def test_rows_of_all_rules_and_choices_of_one_row_are_drawn_together(device: torch.device) -> None:
    choose = random.Random(4)
    logits = peaked(4, 9)
    logits[2] = 0.25
    rules = ("greedy", "plain", "cold", "penalties", "min-p", "bias", "repetition alone")
    tasks = [task(row % 4, choose, **RULES[name]) for row, name in enumerate(rules)]
    assert sample_on_device(logits.to(device), tasks) == sample(logits, tasks)


def test_a_vocabulary_of_several_tiles_is_searched(device: torch.device) -> None:
    logits = torch.randn(1, 9001, generator=torch.Generator().manual_seed(0))
    choose = random.Random(5)
    tasks = [task(0, choose, top_k=300, top_p=0.7)]
    assert sample_on_device(logits.to(device), tasks) == sample(logits, tasks)


def test_rows_without_an_answer_say_why(device: torch.device) -> None:
    choose = random.Random(6)
    logits = peaked(5, 1)
    logits[0, 5] = torch.nan
    logits[1, 5] = torch.inf
    logits[2] = -torch.inf
    logits[3, :] = -torch.inf
    logits[3, 8] = 1.0
    banned: dict[str, Any] = {"min_tokens": 1000, "stop_token_ids": (8,)}
    tasks = [task(row, choose) for row in range(5)]
    tasks[3] = task(3, choose, **banned)
    found = sample_on_device(logits.to(device), tasks)
    assert found[:4] == [ErrorCode.NON_FINITE] * 3 + [ErrorCode.NO_CANDIDATE]
    assert isinstance(found[4], Sampled)
    assert found == sample(logits, tasks)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_absurd_rules_are_errors_of_their_row(temperature: float, device: torch.device) -> None:
    choose = random.Random(8)
    logits = peaked(3, 3) + 20
    rules: list[dict[str, Any]] = [
        {"logit_bias": ((5, 1e300),)},
        {"repetition_penalty": 1e-45},
        {"logit_bias": ((5, 2.0),)},
    ]
    tasks = [task(row, choose, temperature=temperature, **rules[row]) for row in range(3)]
    # The interpreter computes with numpy, which would warn of what is meant to happen.
    with np.errstate(all="ignore"):
        found = sample_on_device(logits.to(device), tasks)
    assert found[:2] == [ErrorCode.NON_FINITE] * 2
    assert found == sample(logits, tasks)


def test_logprobs_are_those_of_the_raw_logits(device: torch.device) -> None:
    choose = random.Random(7)
    logits = peaked(2, 2)
    tasks = [task(0, choose, num_logprobs=3, logit_bias=((4, 50.0),)), task(1, choose)]
    found = sample_on_device(logits.to(device), tasks)
    assert found == sample(logits, tasks)
    assert isinstance(found[0], Sampled)
    assert found[0].logprobs is not None
