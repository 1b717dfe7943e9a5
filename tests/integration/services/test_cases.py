"""Kinds of fault seen in other servers, excluded here on the real model and the whole way."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from tests.integration.reference.prompts import SMALL_COVER
from tests.integration.reference.recorded import recording
from tests.support.http_client import HttpClient
from tests.support.up_process import UpProcess

_MODEL_VOCAB = 49152
_SHADOW_VOCAB = 1000


def _random_ids(count: int, vocab: int, *, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(10, vocab - 10) for _ in range(count)]


def _cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


_LENGTHS = (15, 16, 17, 31, 32, 33, 48, 64)


def _assert_cached_answers_are_the_same(client: HttpClient, length: int, vocab: int) -> None:
    body = {"prompt": _random_ids(length, vocab, seed=length), "max_tokens": 24, "temperature": 0}
    answers = [client.complete(ignore_eos=True, **body) for _ in range(3)]
    assert len({tuple(answer["choices"][0]["token_ids"]) for answer in answers}) == 1
    cached = [_cached(answer) for answer in answers]
    assert cached == [0, *[(length - 1) // 16 * 16] * 2]
    assert all(answer["usage"]["prompt_tokens"] == length for answer in answers)


@pytest.mark.parametrize("length", _LENGTHS)
def test_c08_a_prompt_cached_completely_gives_the_same_answer(
    client: HttpClient, length: int
) -> None:
    _assert_cached_answers_are_the_same(client, length, _SHADOW_VOCAB)


def test_c08_prompts_cached_completely_give_the_models_answers(
    model: HttpClient,
) -> None:
    """All lengths side by side, since alone they take a minute."""

    def ask(length: int) -> None:
        _assert_cached_answers_are_the_same(model, length, _MODEL_VOCAB)

    with ThreadPoolExecutor(len(_LENGTHS)) as threads:
        list(threads.map(ask, _LENGTHS))


def test_c11_a_cold_prompt_reports_no_cached_tokens(model: HttpClient) -> None:
    body = {"prompt": _random_ids(100, _MODEL_VOCAB, seed=1), "max_tokens": 4, "temperature": 0}
    first, second = model.complete(**body), model.complete(**body)
    assert (_cached(first), _cached(second)) == (0, 96)
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"] == 100


def test_c28_greedy_answers_do_not_change_with_those_beside_them(model: HttpClient) -> None:
    answers = [recording().answers[name].first(16) for name in SMALL_COVER]

    def ask(index: int) -> list[int]:
        answer = answers[index]
        return model.token_ids(
            prompt=list(answer.prompt_token_ids),
            max_tokens=16,
            temperature=0,
            ignore_eos=answer.kind == "raw",
        )

    with ThreadPoolExecutor(len(answers)) as threads:
        said = list(threads.map(ask, range(len(answers))))
    for answer, token_ids in zip(answers, said, strict=True):
        assert token_ids == list(answer.token_ids), answer.name


@pytest.fixture(scope="module")
def first(up: UpProcess) -> Any:
    """The answer of TestFourChoices, asked for once."""
    with HttpClient(up.http) as client:
        return client.complete(n=4, **TestFourChoices.body)


class TestFourChoices:
    body: ClassVar[dict[str, Any]] = {
        "prompt": "Describe a mountain in one line.",
        "seed": 11,
        "temperature": 1.2,
        "max_tokens": 32,
        "ignore_eos": True,  # three of these four would be empty: the model likes to end here
        "return_token_ids": True,
    }

    def test_c29_they_differ_and_count_the_prompt_once(self, model: HttpClient, first: Any) -> None:
        texts = [choice["text"] for choice in first["choices"]]
        assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
        assert len(set(texts)) >= 3
        assert all(choice["finish_reason"] in ("stop", "length") for choice in first["choices"])
        single = model.complete(**self.body)
        assert single["choices"][0]["text"] == texts[0]
        assert first["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
        total = sum(len(choice["token_ids"]) for choice in first["choices"])
        assert first["usage"]["completion_tokens"] == total

    def test_c29_a_second_run_streamed_brings_the_same_texts(
        self, model: HttpClient, first: Any
    ) -> None:
        texts, reasons = dict.fromkeys(range(4), ""), {}
        for event in model.stream(n=4, **self.body):
            for choice in event["choices"]:
                assert choice["index"] not in reasons, "text after the end of its choice"
                texts[choice["index"]] += choice["text"]
                if choice["finish_reason"] is not None:
                    reasons[choice["index"]] = choice["finish_reason"]
        assert list(texts.values()) == [choice["text"] for choice in first["choices"]]
        assert reasons == {c["index"]: c["finish_reason"] for c in first["choices"]}

    def test_c29_without_a_seed_they_differ_too(self, model: HttpClient) -> None:
        unseeded = {name: value for name, value in self.body.items() if name != "seed"}
        answer = model.complete(n=4, **unseeded)
        assert len({choice["text"] for choice in answer["choices"]}) >= 3

    def test_c29_one_that_stops_early_leaves_the_others_alone(
        self, model: HttpClient, first: Any
    ) -> None:
        texts = [choice["text"] for choice in first["choices"]]
        stop = _only_in_first(texts)
        stopped = model.complete(n=4, stop=stop, **self.body)["choices"]
        assert stopped[0]["finish_reason"] == "stop"
        assert stopped[0]["text"] == texts[0][: texts[0].index(stop)]
        assert [choice["text"] for choice in stopped[1:]] == texts[1:]


def _only_in_first(texts: list[str]) -> str:
    first, others = texts[0], texts[1:]
    pieces = (first[i : i + 8] for i in range(6, len(first) - 8))
    return next(piece for piece in pieces if not any(piece in other for other in others))


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 20])
def test_c43_the_last_chunk_keeps_its_tokens(model: HttpClient, max_tokens: int) -> None:
    body: dict[str, Any] = {
        "prompt": "The harbour in the morning",
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    text, reason = "", None
    token_ids: list[int] = []
    usage: dict[str, Any] = {}
    for event in model.stream(stream_options={"include_usage": True}, **body):
        for choice in event["choices"]:
            text += choice["text"]
            token_ids += choice.get("token_ids") or []
            reason = choice["finish_reason"] or reason
        usage = event.get("usage") or usage
    whole = model.complete(**body)
    assert text and text == whole["choices"][0]["text"]
    assert token_ids == whole["choices"][0]["token_ids"]
    assert len(token_ids) == usage["completion_tokens"] == max_tokens
    assert whole["usage"]["completion_tokens"] == max_tokens
    assert reason == whole["choices"][0]["finish_reason"] == "length"
