"""A seeded request samples the same tokens under every setting as when it runs alone."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from functools import cache

import pytest

from common.plan import TOKEN_TYPECODE, SamplingParams
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.request import Request
from tests.integration.reference.recorded import recording
from tests.integration.settings import ALL_SETTINGS, PAIRWISE_SETTINGS, Setting
from tests.integration.workload import run_under

_ALONE = Setting(4, 512, "off", 1, "ample")
"""One request at a time; four choices need four places."""
_SHARED = [setting for setting in ALL_SETTINGS if setting.batch >= 4]
_SHARED_COVER = [setting for setting in PAIRWISE_SETTINGS if setting.batch >= 4][::3]
_NUM_TOKENS = 16

_CASES: dict[str, tuple[str, SamplingParams]] = {
    "temperature-0.8": ("short-sentence", SamplingParams(temperature=0.8, seed=1)),
    "temperature-1.2": ("chat-explain", SamplingParams(temperature=1.2, seed=2)),
    "top-k": ("python", SamplingParams(temperature=1.2, top_k=2, seed=3)),
    "top-p": ("one-past-64", SamplingParams(temperature=0.8, top_p=0.9, seed=4)),
    "min-p": ("chinese", SamplingParams(temperature=1.2, min_p=0.05, seed=5)),
    "all-three": (
        "chat-steward-hours",
        SamplingParams(temperature=1.2, top_k=50, top_p=0.95, min_p=0.01, seed=2**64 - 1),
    ),
    "penalties": (
        "chat-steward-loans",
        SamplingParams(
            temperature=0.8,
            repetition_penalty=1.3,
            presence_penalty=0.5,
            frequency_penalty=0.7,
            seed=7,
        ),
    ),
    "greedy-penalties": (
        "repeated-line",
        SamplingParams(temperature=0.0, repetition_penalty=1.2, frequency_penalty=1.0),
    ),
    "bias-and-min-tokens": (
        "seventeen-tokens",
        SamplingParams(
            temperature=0.8, logit_bias=((28, -100.0), (198, 3.0)), min_tokens=8, seed=9
        ),
    ),
}
_FOUR_CHOICES = SamplingParams(temperature=1.2, seed=11)
_FOUR_CHOICES_PROMPT = "chat-emoji"


def _request(
    name: str, prompt: str, params: SamplingParams, *, n: int = 1, max_tokens: int = _NUM_TOKENS
) -> Request:
    ids = recording().answers[prompt].prompt_token_ids
    return Request(
        request_id=name,
        prompt_token_ids=array(TOKEN_TYPECODE, ids),
        params=params,
        n=n,
        max_tokens=max_tokens,
    )


def _requests() -> list[Request]:
    four = _request("four-choices", _FOUR_CHOICES_PROMPT, _FOUR_CHOICES, n=4)
    return [_request(name, *case) for name, case in _CASES.items()] + [four]


def _tokens_under(setting: Setting, *requests: Request) -> Mapping[SequenceKey, list[int]]:
    choices, _ = run_under(setting, requests)
    return {key: choice.token_ids for key, choice in choices.items()}


@cache
def _alone() -> Mapping[SequenceKey, list[int]]:
    tokens: dict[SequenceKey, list[int]] = {}
    for request in _requests():
        tokens |= _tokens_under(_ALONE, request)
    return tokens


def _assert_sampled_as_alone(setting: Setting) -> None:
    sampled = _tokens_under(setting, *_requests())
    assert sampled.keys() == _alone().keys()
    for key, tokens in _alone().items():
        assert len(tokens) == _NUM_TOKENS
        assert sampled[key] == tokens, key


@pytest.mark.parametrize("setting", _SHARED_COVER, ids=str)
def test_seeded_sampling_gives_the_tokens_of_its_alone_run(setting: Setting) -> None:
    _assert_sampled_as_alone(setting)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", _SHARED, ids=str)
def test_seeded_sampling_gives_the_tokens_of_its_alone_run_on_every_setting(
    setting: Setting,
) -> None:
    _assert_sampled_as_alone(setting)


def test_four_choices_differ_and_the_first_is_the_answer_of_one() -> None:
    texts = [_alone()[SequenceKey("four-choices", choice)] for choice in range(4)]
    assert len({tuple(text) for text in texts}) == 4
    single = _request("one-choice", _FOUR_CHOICES_PROMPT, _FOUR_CHOICES)
    assert _tokens_under(_ALONE, single)[SequenceKey("one-choice", 0)] == texts[0]


def test_another_seed_gives_another_answer() -> None:
    prompt, params = _CASES["temperature-1.2"]
    other = SamplingParams(temperature=params.temperature, seed=params.seed + 1)
    sampled = _tokens_under(_ALONE, _request("other-seed", prompt, other))
    assert sampled[SequenceKey("other-seed", 0)] != _alone()[SequenceKey("temperature-1.2", 0)]


def test_settings_of_sampling_took_effect() -> None:
    """Each case's answer differs from plain sampling with its seed: no setting is ignored."""
    for name in ("top-k", "top-p", "min-p", "penalties", "bias-and-min-tokens"):
        prompt, params = _CASES[name]
        plain = SamplingParams(temperature=params.temperature, seed=params.seed)
        key = SequenceKey("plain", 0)
        assert (
            _tokens_under(_ALONE, _request("plain", prompt, plain))[key]
            != _alone()[SequenceKey(name, 0)]
        ), name
