"""Sampling fields at the edges of their ranges, from HTTP to the sampler and back.

C numbers name acceptance cases.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from common.plan import StepPlan, StepResult
from executor_service.runner.model_runner import ModelRunner
from executor_service.runner.sampler import Logits, Sampled, SampleTask
from scheduler_service.core.events import SequenceKey
from tests.support.builders import make_limits, make_request, random_ids
from tests.support.in_process_engine import Arrival, InProcessEngine
from tests.support.one_process import OneProcess
from tests.support.tiny_llama import VOCAB_SIZE

V = VOCAB_SIZE
_BODY: dict[str, Any] = {
    "prompt": random_ids(7, 20, V),
    "max_tokens": 8,
    "ignore_eos": True,
    "seed": 5,
}


async def _greedy(whole: OneProcess) -> list[int]:
    return await whole.token_ids(**_BODY, temperature=0)


async def _check_alive(whole: OneProcess, greedy: list[int]) -> None:
    assert (await whole.http.get("/health/ready")).status_code == 200
    assert await _greedy(whole) == greedy
    await whole.check_clean()


async def test_c49_tiny_temperatures_and_shares_are_greedy_and_finite(whole: OneProcess) -> None:
    greedy = await _greedy(whole)
    tiny: list[dict[str, Any]] = [
        *({"temperature": value} for value in (1e-4, 1e-5, 1e-8, 1e-12, 1e-38, 1e-45)),
        *({"temperature": 1, "top_p": value} for value in (1e-4, 1e-9)),
        {"temperature": 1e-8, "top_p": 1e-9},
        {"temperature": 1e-5, "repetition_penalty": 1.0, "min_p": 1e-9, "top_k": 3},
    ]
    for fields in tiny:
        answer = await whole.complete(**_BODY, **fields, logprobs=2)
        (choice,) = answer["choices"]
        if fields["temperature"] != 1e-4:
            assert choice["token_ids"] == greedy, fields
        assert all(math.isfinite(value) for value in choice["logprobs"]["token_logprobs"])
        assert all(value <= 0 for value in choice["logprobs"]["token_logprobs"])
    await _check_alive(whole, greedy)


async def test_c50_every_top_k_and_top_p_is_served_or_refused_by_field(whole: OneProcess) -> None:
    greedy = await _greedy(whole)
    hot: dict[str, Any] = _BODY | {"temperature": 3.0}
    off = await whole.token_ids(**hot)
    assert off != greedy
    for top_k in (-1, 0, V, V + 1, 9_999_999, 2**31):
        assert await whole.token_ids(**hot, top_k=top_k) == off, top_k
    assert await whole.token_ids(**hot, top_k=1) == greedy
    assert len(await whole.token_ids(**hot, top_k=V - 1)) == 8
    assert await whole.token_ids(**hot, top_p=1) == off
    steps = whole.runner.num_steps
    refused = [("top_k", value) for value in (-2, 0.5, "5", 2**63)]
    refused += [("top_p", value) for value in (0, 1.0001, -0.1)]
    for field, value in refused:
        for stream in (False, True):
            response = await whole.http.post(
                "/v1/completions", json=hot | {field: value, "stream": stream}
            )
            assert response.status_code == 400, (field, value)
            error = response.json()["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert whole.runner.num_steps == steps
    await _check_alive(whole, greedy)


async def test_c29_four_choices_differ_repeat_and_end_each_on_its_own(whole: OneProcess) -> None:
    body: dict[str, Any] = {
        "prompt": "Describe a mountain in one line.",
        "seed": 11,
        "temperature": 1.2,
        "max_tokens": 32,
        "ignore_eos": True,
    }
    first, again = await whole.complete(n=4, **body), await whole.complete(n=4, **body)
    choices = first["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 4
    assert again["choices"] == choices
    single = await whole.complete(**body)
    assert single["choices"][0]["token_ids"] == choices[0]["token_ids"]
    assert first["usage"]["completion_tokens"] == 4 * 32
    assert first["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    unseeded = {name: value for name, value in body.items() if name != "seed"}
    others = (await whole.complete(n=4, **unseeded))["choices"]
    assert len({tuple(choice["token_ids"]) for choice in others}) == 4
    # One ends at a token that only it has so early.
    stop_id = _only_in_first([choice["token_ids"] for choice in choices])
    stopped = await whole.complete(n=4, stop_token_ids=[stop_id], **body)
    length = choices[0]["token_ids"].index(stop_id) + 1
    assert stopped["choices"][0]["token_ids"] == choices[0]["token_ids"][:length]
    assert [choice["finish_reason"] for choice in stopped["choices"]] == ["stop", *["length"] * 3]
    for index in (1, 2, 3):
        assert stopped["choices"][index]["token_ids"] == choices[index]["token_ids"]
    assert stopped["usage"]["completion_tokens"] == length + 3 * 32
    await whole.check_clean()


def _only_in_first(answers: list[list[int]]) -> int:
    others = {token for answer in answers[1:] for token in answer}
    return next(token for token in answers[0][2:-2] if token not in others)


async def test_c58_logprobs_are_of_the_tokens_that_were_sampled(whole: OneProcess) -> None:
    body: dict[str, Any] = _BODY | {"temperature": 1.5, "max_tokens": 24}
    alone = await whole.token_ids(**body)
    outside = 0
    for count in (0, 1, 5):
        (choice,) = (await whole.complete(**body, logprobs=count))["choices"]
        assert choice["token_ids"] == alone
        logprobs = choice["logprobs"]
        assert {len(entries) for entries in logprobs.values()} == {24}
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
        rows = zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        )
        for token, value, top in rows:
            assert top[token] == value
            assert 1 <= len(top) <= count + 1
            best = [other for name, other in top.items() if name != token]
            assert best == sorted(best, reverse=True)
            outside += count == 5 and all(other > value for other in best)
        scored = await _score(whole, alone)
        assert logprobs["token_logprobs"] == pytest.approx(scored, abs=1e-4)
    assert outside > 0, "no token was sampled from outside its top list"


async def _score(whole: OneProcess, outputs: list[int]) -> list[float]:
    """What the model gives these tokens when they are read as a prompt."""
    prompt = [*_BODY["prompt"], *outputs]
    fields = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    (choice,) = (await whole.complete(prompt=prompt, **fields))["choices"]
    rows = choice["prompt_logprobs"][len(_BODY["prompt"]) :]
    return [row[str(token)]["logprob"] for row, token in zip(rows, outputs, strict=True)]


class _ScriptedLogits:
    """The runner's own sampler over logits that peak at one scripted token per output."""

    def __init__(self, runner: ModelRunner, peaks: Sequence[int]) -> None:
        self._draw = runner._draw
        self._peaks = peaks

    def execute(self, plan: StepPlan) -> StepResult:
        chunks = [chunk for chunk in plan.chunks() if chunk.samples]
        rows = torch.zeros(max(1, len(chunks)), V)
        tasks = []
        for row, chunk in enumerate(chunks):
            history = array("i", chunk.tokens)
            task = SampleTask(
                spec=chunk.samples[0], row=row, position=len(history), history=history
            )
            rows[row, self._peaks[task.num_outputs]] = 50.0
            tasks.append(task)
        answers = self._draw(Logits(rows), tasks)
        tokens = [answer.token for answer in answers if isinstance(answer, Sampled)]
        assert len(tokens) == len(tasks)
        return StepResult(step_id=plan.step_id, tokens=array("i", tokens))

    def forget_samples(self) -> None:
        pass


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_c47_a_stop_token_waits_for_min_tokens(runner: ModelRunner, temperature: float) -> None:
    """It is scripted as the second and the sixth output; with min_tokens 4 only the sixth is it."""
    x = 33
    peaks = [40, x, 42, 43, 44, x, 46, 47]
    for min_tokens, length in ((0, 2), (4, 6)):
        engine = InProcessEngine(make_limits(vocab_size=V), _ScriptedLogits(runner, peaks))
        request = make_request(
            "r",
            [1, 2, 3],
            max_tokens=8,
            temperature=temperature,
            stop_token_ids=[x],
            min_tokens=min_tokens,
        )
        engine.run([Arrival(0, request)])
        choice = engine.choices[SequenceKey("r", 0)]
        assert choice.finished is not None
        assert (choice.finished.reason.value, choice.finished.stop_token_id) == ("stop", x)
        assert len(choice.token_ids) == length
        assert choice.token_ids.index(x) == length - 1
