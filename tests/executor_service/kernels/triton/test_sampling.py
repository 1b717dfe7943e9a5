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
from executor_service.kernels.logit_adjust import adjust_logits
from executor_service.kernels.transfers import upload_now
from executor_service.runner.device_penalties import adjustments
from executor_service.runner.device_sampler import answers, launch_draws
from executor_service.runner.draw_task import DrawTask
from executor_service.runner.penalties import adjust
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
    return SampleTask(spec=spec, row=row, position=len(history), history=history)


def sample_on_device(logits: torch.Tensor, tasks: list[SampleTask]) -> list[Sampled | ErrorCode]:
    draws = [
        DrawTask(spec=t.spec, row=t.row, position=t.position, history=t.history) for t in tasks
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


READING: dict[str, dict[str, Any]] = {
    "all": {"repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": -0.6},
    "frequency": {"frequency_penalty": 0.13},
    "all, a bias and an end": {
        "repetition_penalty": 0.9,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.3,
        "logit_bias": ((3, 1.5), (4, -1.5), (5, 0.3)),
        "min_tokens": 1000,
        "stop_token_ids": (4,),
    },
}
LAST = {"new": 3, "of the prompt": 4, "of the outputs": 5, "of both": 6}


@pytest.mark.parametrize("name", READING)
def test_a_token_in_flight_is_penalized_as_if_it_were_known(
    name: str, device: torch.device
) -> None:
    """Bit by bit as on the host, whose history has it; the last row has none in flight."""
    params = SamplingParams(seed=1, **READING[name])
    spec = SequenceSpec(sequence_id=SequenceId(1), index=0, num_prompt_tokens=4, params=params)
    # More tokens than the kernel takes at once, and of most of them none is the one in flight.
    known = array("i", [4, 6, 4, 900, 5, 6, 5, 7, *range(500, 800)])
    before = torch.tensor([11, *LAST.values(), 12], dtype=torch.int32, device=device)
    wanted = peaked(len(LAST) + 1, len(name)).numpy()
    found = torch.from_numpy(wanted.copy()).to(device)
    tasks = [
        DrawTask(spec=spec, row=i, position=len(known) + 1, history=known, in_flight=1 + i)
        for i in range(len(LAST))
    ]
    tasks.append(DrawTask(spec=spec, row=len(LAST), position=len(known), history=known))
    adjust_logits(found, adjustments(tasks, partial(upload_now, device=device), before))
    for row, last in enumerate([*LAST.values(), None]):
        history = known if last is None else known + array("i", [last])
        adjust(wanted[row], params, history, spec.num_prompt_tokens)
    assert torch.equal(found.cpu(), torch.from_numpy(wanted))


def test_a_draw_takes_the_token_in_flight(device: torch.device) -> None:
    """Without it the same token would be drawn once more."""
    rules: dict[str, Any] = {"temperature": 0.0, "presence_penalty": 2.0}
    spec = task(0, random.Random(1), **rules).spec
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 7], logits[0, 8] = 2.0, 1.0
    history = array("i", range(100, 100 + NUM_PROMPT))
    before = torch.tensor([1, 7], dtype=torch.int32, device=device)
    upload = partial(upload_now, device=device)
    drawn = []
    for in_flight in (0, 1):
        draw = DrawTask(
            spec=spec, row=0, position=NUM_PROMPT + 1, history=history, in_flight=in_flight
        )
        drawn.append(int(launch_draws(logits.to(device), [draw], upload, before)[0, 0]))
    assert drawn == [7, 8]


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
