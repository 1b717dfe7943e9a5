"""The pump: prompt about stops, indifferent to slow clients, exact about aborts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from array import array
from typing import Any

import pytest

from common.errors import (
    DeadlineError,
    InvalidRequestError,
    OctavoError,
    QueueFullError,
    UnavailableError,
)
from scheduler_service.api.choice import Delta
from scheduler_service.api.generate_request import FinishedOutput, GenerateRequest, PriorOutputs
from scheduler_service.api.generation import Generation
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service
from scheduler_service.engine.messages import Refused, Submit
from tests.scheduler_service.api.builders import make_request
from tests.scheduler_service.api.conftest import Script
from tests.support.fake_engine_connection import FakeEngineConnection


async def told(generation: Generation) -> dict[int, Delta]:
    """Reads to the end and merges deltas by choice."""
    merged: dict[int, Delta] = {}
    while (deltas := await generation.next()) is not None:
        for delta in deltas:
            into = merged.setdefault(delta.index, Delta(delta.index))
            assert into.end is None, "a delta after the end"
            into.text += delta.text
            into.token_ids += delta.token_ids
            into.entries += delta.entries
            into.end = delta.end
    return merged


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)


def prior(finished: dict[int, int], **running: list[int]) -> PriorOutputs:
    return PriorOutputs(
        running={int(name[1:]): array("i", ids) for name, ids in running.items()},
        finished=tuple(
            FinishedOutput(index=index, num_tokens=count) for index, count in finished.items()
        ),
    )


async def test_streamed_and_collected_are_the_same(service: Service, script: Script) -> None:
    ids = script.say(" a mountain, 🗼 tall", then=[2, 2, 2])
    request = make_request(n=3, max_tokens=50)
    async with service.generate(request) as streaming:
        streamed = await told(streaming)
    async with service.generate(request) as collecting:
        collected = await collecting.collect()
    assert [streamed[index] for index in range(3)] == collected
    for delta in collected:
        assert delta.text == " a mountain, 🗼 tall"
        assert delta.token_ids == ids[:-2]
        assert delta.end == ("stop", len(ids) - 2, None, "")
    assert collecting.num_output_tokens == 3 * (len(ids) - 2)


async def test_a_slow_client_gets_everything_in_one_piece(
    service: Service, script: Script, connection: FakeEngineConnection
) -> None:
    script.say(" one two three four five", then=[2])
    async with service.generate(make_request(max_tokens=50)) as generation:
        await until(lambda: not connection.num_live)
        (delta,) = await generation.next() or ()
        assert delta.text == " one two three four five"
        assert delta.end is not None
        assert await generation.next() is None


async def test_c41_a_stop_string_is_acted_on_while_nobody_reads(
    service: Service, script: Script, connection: FakeEngineConnection
) -> None:
    script.say("red, green, blue, black, white, pink,")
    connection._num_overrun = 3
    async with service.generate(make_request(stop=["white"], max_tokens=99)) as generation:
        await until(lambda: not connection.num_live)
        count = connection.finishes[0][2]
        assert connection.finishes == [(1, 0, count)]
        (delta,) = await generation.collect()
    assert delta.text == "red, green, blue, black, "
    assert len(delta.token_ids) == count == generation.num_output_tokens
    assert connection.aborts == connection.useless_aborts == []


async def test_choices_end_each_on_their_own(
    service: Service, script: Script, connection: FakeEngineConnection
) -> None:
    script.answer = lambda submit, index: [300 + index] * (index + 1) + [2]
    async with service.generate(make_request(n=4, max_tokens=3)) as generation:
        merged = await told(generation)
    ends = {index: delta.end for index, delta in merged.items()}
    assert ends == {
        0: ("stop", 2, None, ""),
        1: ("stop", 3, None, ""),
        2: ("length", 3, None, ""),
        3: ("length", 3, None, ""),
    }


async def test_prompts_keep_their_choices_whatever_ends_first(
    service: Service, script: Script
) -> None:
    def answer(submit: Submit, index: int) -> list[int]:
        (first,) = array("i", submit.prompt_token_ids)
        return [first] * (310 - first) + [2]

    script.answer = answer
    request = make_request([300], [309], [305], n=2, max_tokens=20)
    async with service.generate(request) as generation:
        deltas = await generation.collect()
    assert [delta.index for delta in deltas] == list(range(6))
    assert [delta.token_ids[0] for delta in deltas] == [300, 300, 309, 309, 305, 305]
    assert generation.num_prompt_tokens == 3


@pytest.mark.parametrize("phase", ["queued", "admitted", "decoding"])
async def test_leaving_aborts_once_in_every_phase(
    service: Service, connection: FakeEngineConnection, phase: str
) -> None:
    gate = connection.may_admit if phase == "queued" else connection.may_step
    gate.clear()
    async with service.generate(make_request(max_tokens=500)) as generation:
        if phase == "admitted":
            assert await generation.next() == []
        if phase == "decoding":
            gate.set()
            await generation.next()
            await generation.next()
    generation.close()
    assert connection.aborts == ["r"]
    assert connection.useless_aborts == []
    gate.set()
    await asyncio.sleep(0)
    assert connection.num_live == 0


async def test_what_has_ended_is_never_aborted(
    service: Service, script: Script, connection: FakeEngineConnection
) -> None:
    script.say(" fine", then=[2])
    for request in (make_request(max_tokens=9), make_request(stop=["ne"], max_tokens=9)):
        async with service.generate(request) as generation:
            await generation.collect()
    assert connection.aborts == connection.useless_aborts == []


async def test_an_exception_in_the_block_aborts(
    service: Service, connection: FakeEngineConnection
) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with service.generate(make_request("a", "b", max_tokens=500)):
            raise ZeroDivisionError
    assert connection.aborts == ["r-0", "r-1"]


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (Refused(1, "invalid", "max_tokens", "too many"), InvalidRequestError),
        (Refused(1, "queue_full", "", "full", 2.5), QueueFullError),
        (Refused(1, "unavailable", "", "draining"), UnavailableError),
    ],
)
async def test_a_refusal_is_the_only_news(
    service: Service,
    connection: FakeEngineConnection,
    refused: Refused,
    error: type[OctavoError],
) -> None:
    connection.refusal = lambda submit: refused
    with pytest.raises(error) as raised:
        async with service.generate(make_request()) as generation:
            assert await told(generation) == {}
    if isinstance(raised.value, InvalidRequestError):
        assert raised.value.field == "max_tokens"
    if isinstance(raised.value, QueueFullError):
        assert raised.value.retry_after_s == 2.5
    assert connection.aborts == connection.useless_aborts == []


async def test_one_refused_prompt_ends_all(
    service: Service, connection: FakeEngineConnection
) -> None:
    original = connection.submit

    def submit(submit: Submit, stream: Any) -> None:
        if submit.request_id == "r-1":
            connection.refusal = lambda submit: Refused(2, "queue_full", "", "full")
        original(submit, stream)

    connection.submit = submit  # type: ignore[method-assign]
    with pytest.raises(QueueFullError):
        async with service.generate(make_request("a", "b", max_tokens=500)) as generation:
            await generation.collect()
    assert connection.aborts == ["r-0"]


async def test_the_loss_of_the_loop_ends_it(
    service: Service, connection: FakeEngineConnection
) -> None:
    with pytest.raises(UnavailableError, match="gone"):
        async with service.generate(make_request(max_tokens=500)) as generation:
            await generation.next()
            connection.lose("the step loop is gone")
            await told(generation)
    assert connection.aborts == []


async def test_tokens_before_an_error_are_told_first(
    service: Service, connection: FakeEngineConnection
) -> None:
    connection.expires_at = 3
    texts = []
    with pytest.raises(DeadlineError):
        async with service.generate(make_request(max_tokens=500)) as generation:
            while (deltas := await generation.next()) is not None:
                texts += [token_id for delta in deltas for token_id in delta.token_ids]
    assert texts == [260, 260, 260]


async def test_a_failed_choice_says_why(service: Service, connection: FakeEngineConnection) -> None:
    connection.error_at = 2
    async with service.generate(make_request(max_tokens=500)) as generation:
        (delta,) = await generation.collect()
    assert delta.end == ("error", 2, None, "the executor said no")


async def test_a_bug_in_the_pump_ends_the_request(
    service: Service, connection: FakeEngineConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("scheduler_service.api.choice.Choice.push", explode)
    with pytest.raises(OctavoError, match="internal error"):
        async with service.generate(make_request(max_tokens=500)) as generation:
            await generation.collect()
    assert connection.aborts == ["r"]


async def test_a_deadline_that_has_passed_submits_nothing(
    service: Service, connection: FakeEngineConnection
) -> None:
    with pytest.raises(DeadlineError):
        async with service.generate(make_request(timeout_s=1.0), arrived_at=0.0):
            pass
    assert connection.submits == []


async def test_a_wanted_prompt_alone_takes_one_step_and_tells_no_output(
    service: Service, connection: FakeEngineConnection
) -> None:
    request = make_request([5, 6, 7], max_tokens=0, echo=True, num_prompt_logprobs=1)
    async with service.generate(request) as generation:
        (delta,) = await generation.collect()
        entries = generation.runs[0].prompt_logprobs
    assert (delta.text, delta.token_ids) == ("", [])
    assert delta.end == ("length", 0, None, "")
    assert [entry and entry.token_ids[0] for entry in entries] == [None, 6, 7]
    assert connection.submits[0].max_tokens == 1
    assert generation.num_output_tokens == 0


async def test_an_echo_alone_never_reaches_the_loop(
    service: Service, connection: FakeEngineConnection
) -> None:
    async with service.generate(make_request(max_tokens=0, echo=True, n=2)) as generation:
        deltas = await generation.collect()
    assert [delta.end for delta in deltas] == [("length", 0, None, "")] * 2
    assert connection.submits == []


async def test_a_resume_goes_on_where_the_client_was_left(
    service: Service, script: Script, connection: FakeEngineConnection
) -> None:
    ids = script.say(" one two 🗼 three", then=[2])
    for cut in range(len(ids) - 1):
        async with service.generate(make_request(max_tokens=50)) as whole:
            expected = (await whole.collect())[0]
        request = make_request(max_tokens=50, prior=prior({}, c0=ids[:cut]))
        async with service.generate(request) as generation:
            (delta,) = await generation.collect()
        assert ids[:cut] + delta.token_ids == expected.token_ids
        assert expected.text.endswith(delta.text)
        assert delta.end == expected.end
        assert generation.num_output_tokens == len(ids)


async def test_a_resume_runs_only_what_had_not_ended(
    service: Service, script: Script, connection: FakeEngineConnection
) -> None:
    script.say_ids([300, 301, 302, 2])
    request = make_request(n=3, max_tokens=50, prior=prior({1: 7}, c0=[300], c2=[]))
    async with service.generate(request) as generation:
        merged = await told(generation)
    (submit,) = connection.submits
    assert submit.prior_outputs == ((0, array("i", [300]).tobytes()), (2, b""))
    assert sorted(merged) == [0, 2]
    assert merged[0].token_ids == [301, 302, 2]
    assert merged[2].token_ids == [300, 301, 302, 2]
    assert generation.num_output_tokens == 4 + 7 + 4


@pytest.mark.parametrize(
    ("request_fields", "end"),
    [
        ({"max_tokens": 2}, ("length", 2, None, "")),
        ({"eos_token_ids": [301]}, ("stop", 2, None, "")),
        ({"stop_token_ids": [301]}, ("stop", 2, 301, "")),
        ({"stop": ["il"]}, ("stop", 2, "il", "")),
    ],
)
async def test_an_end_that_got_lost_is_told_without_a_step(
    service: Service,
    connection: FakeEngineConnection,
    request_fields: dict[str, Any],
    end: tuple[Any, ...],
) -> None:
    request: GenerateRequest = make_request(prior=prior({}, c0=[300, 301]), **request_fields)
    async with service.generate(request) as generation:
        merged = await told(generation)
    assert merged[0].end == end
    assert merged[0].token_ids == []
    assert connection.submits == []


async def test_the_servers_default_deadline_applies_to_requests_without_one(
    service: Service, connection: FakeEngineConnection, model: ServedModel
) -> None:
    service = Service(dataclasses.replace(service.config, request_timeout=60.0), connection)
    service.set_model(model)
    async with service.generate(make_request(max_tokens=1)) as generation:
        await generation.collect()
    timeout_s = connection.submits[0].timeout_s
    assert timeout_s is not None
    assert 50 < timeout_s <= 60


async def test_nothing_new_is_taken_while_draining(service: Service) -> None:
    service.drain()
    with pytest.raises(UnavailableError, match="shutting down"):
        async with service.generate(make_request()):
            pass
