from __future__ import annotations

from array import array
from typing import Any

import pytest

from scheduler_service.core.events import Events
from scheduler_service.core.intake import QueueFullError
from scheduler_service.core.request import FinishReason, PriorOutput, RefusedError
from scheduler_service.core.scheduler import Scheduler
from tests.support.builders import make_limits, make_request

CONTEXT = 64
"""Tokens that a sequence can reach: 4 blocks of 16, or max_model_len."""


def _scheduler(**limits: Any) -> Scheduler:
    return Scheduler(make_limits(**{"num_blocks": 4, "max_model_len": CONTEXT, **limits}))


def _prior(index: int, tokens: list[int]) -> PriorOutput:
    return PriorOutput(index=index, token_ids=array("i", tokens))


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "field"),
    [
        (0, 1, "prompt"),
        (CONTEXT, None, "prompt"),
        (CONTEXT + 100, 1, "prompt"),
        (CONTEXT - 2, 3, "max_tokens"),
    ],
)
@pytest.mark.parametrize("limits", [{}, {"num_blocks": 100}, {"max_model_len": 9999}])
def test_what_can_never_fit_is_refused_by_field(
    limits: dict[str, int], num_prompt_tokens: int, max_tokens: int | None, field: str
) -> None:
    scheduler = _scheduler(**limits)
    request = make_request("r", [1] * num_prompt_tokens, max_tokens=max_tokens)
    with pytest.raises(RefusedError) as refused:
        scheduler.add(request)
    assert refused.value.field == field
    assert "-" not in str(refused.value).replace("max-", "")
    assert not scheduler.has_work


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(63, 1), (63, None), (62, 2)])
def test_what_just_fits_is_taken(num_prompt_tokens: int, max_tokens: int | None) -> None:
    scheduler = _scheduler()
    scheduler.add(make_request("r", [1] * num_prompt_tokens, max_tokens=max_tokens))
    assert scheduler.has_work


@pytest.mark.parametrize("n", [0, 9])
def test_more_choices_than_places_are_refused(n: int) -> None:
    with pytest.raises(RefusedError) as refused:
        _scheduler(max_num_seqs=8).add(make_request("r", [1], n=n))
    assert refused.value.field == "n"


def test_a_live_request_id_is_refused_and_a_past_one_is_not() -> None:
    scheduler = _scheduler()
    scheduler.add(make_request("r", [1]))
    with pytest.raises(RefusedError):
        scheduler.add(make_request("r", [2]))
    scheduler.abort("r")
    scheduler.add(make_request("r", [2]))


def test_a_full_queue_refuses_new_requests_but_not_those_that_move() -> None:
    scheduler = _scheduler(max_num_waiting=1)
    scheduler.add(make_request("a", [1]))
    with pytest.raises(QueueFullError):
        scheduler.add(make_request("b", [1]))
    scheduler.add(make_request("c", [1]), [_prior(0, [7])])
    assert scheduler.counters.num_waiting == 2


def test_prior_outputs_resume_each_choice_by_itself() -> None:
    scheduler = _scheduler()
    scheduler.add(make_request("r", [1, 2], n=3), [_prior(0, [5]), _prior(2, [])])
    plan = scheduler.schedule()
    assert plan is not None
    chunks = {chunk.spec.index: chunk for chunk in plan.chunks()}
    assert {index: chunk.tokens for index, chunk in chunks.items()} == {0: (1, 2, 5), 2: (1, 2)}
    assert all(chunk.spec.num_prompt_tokens == 2 for chunk in chunks.values())


@pytest.mark.parametrize(
    ("prior", "reason"), [([7, 2], FinishReason.STOP), ([7, 7, 7], FinishReason.LENGTH)]
)
def test_outputs_that_were_complete_end_at_once(prior: list[int], reason: FinishReason) -> None:
    scheduler = _scheduler()
    request = make_request("r", [1], max_tokens=3, eos_token_ids=[2])
    scheduler.add(request, [_prior(0, prior)])
    events: Events = scheduler.take_events()
    assert [end.reason for end in events.finished] == [reason]
    assert [end.num_output_tokens for end in events.finished] == [len(prior)]
    assert list(events.tokens) == []
    assert not scheduler.has_work
