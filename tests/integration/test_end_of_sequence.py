"""Which tokens end an answer: a chat ends at its end-of-turn token, a raw run ignores it."""

from __future__ import annotations

from array import array

import pytest

from common.plan import TOKEN_TYPECODE, SamplingParams
from scheduler_service.core.request import FinishReason, Request
from tests.integration.reference.recorded import Answer, recording
from tests.integration.settings import Setting
from tests.integration.workload import greedy_request, run_under
from tests.support.in_process_engine import Collected

_SETTING = Setting(4, 64, "on", 2, "ample")
_IM_END = 2


def _run(*requests: Request) -> dict[str, Collected]:
    choices, _ = run_under(_SETTING, requests)
    return {key.request_id: choice for key, choice in choices.items() if key.choice == 0}


def _short_chat() -> Answer:
    """A chat that the reference ended by itself."""
    ended = [
        answer
        for answer in recording().answers.values()
        if answer.kind == "chat" and answer.token_ids[-1] == _IM_END
    ]
    return min(ended, key=lambda answer: len(answer.token_ids))


def test_the_end_of_turn_token_is_the_only_eos() -> None:
    assert recording().eos_token_ids == (_IM_END,)


def test_a_chat_ends_at_its_end_of_turn_token() -> None:
    answer = _short_chat()
    said = _run(greedy_request(answer, recording().eos_token_ids, max_tokens=20))[answer.name]
    assert said.token_ids == list(answer.token_ids)
    assert said.finished is not None
    assert said.finished.reason is FinishReason.STOP
    assert said.finished.stop_token_id is None


def test_an_ignored_eos_is_a_token_like_others() -> None:
    answer = _short_chat()
    said = _run(greedy_request(answer, (), max_tokens=len(answer.token_ids) + 5))[answer.name]
    assert said.token_ids[: len(answer.token_ids)] == list(answer.token_ids)
    assert len(said.token_ids) == len(answer.token_ids) + 5


def test_no_eos_comes_before_min_tokens() -> None:
    answer = _short_chat()
    natural = len(answer.token_ids)
    request = Request(
        request_id="held-back",
        prompt_token_ids=array(TOKEN_TYPECODE, answer.prompt_token_ids),
        params=SamplingParams(temperature=0.0, min_tokens=natural + 2, stop_token_ids=(_IM_END,)),
        max_tokens=natural + 6,
        eos_token_ids=frozenset((_IM_END,)),
    )
    said = _run(request)["held-back"]
    assert said.token_ids[: natural - 1] == list(answer.token_ids[:-1])
    assert _IM_END not in said.token_ids[: natural + 2]


@pytest.mark.parametrize("position", [0, 3])
def test_a_stop_token_ends_and_is_named(position: int) -> None:
    answer = recording().answers["chat-explain"]
    stop = answer.token_ids[position]
    first = answer.token_ids.index(stop)
    request = Request(
        request_id="stopped",
        prompt_token_ids=array(TOKEN_TYPECODE, answer.prompt_token_ids),
        params=SamplingParams(temperature=0.0, stop_token_ids=(_IM_END, stop)),
        max_tokens=20,
        eos_token_ids=frozenset((_IM_END,)),
        stop_token_ids=frozenset((stop,)),
    )
    said = _run(request)["stopped"]
    assert said.token_ids == list(answer.token_ids[: first + 1])
    assert said.finished is not None
    assert (said.finished.reason, said.finished.stop_token_id) == (FinishReason.STOP, stop)
