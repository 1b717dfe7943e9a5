from __future__ import annotations

import dataclasses

import pytest

from tests.bench.serving.octavo_side import ask_afresh
from tests.bench.serving.sse_client import ServerFailed
from tests.bench.serving.workloads import Ask, Interruption, Workload
from tests.support.fake_completions import FakeCompletions

ASKS = tuple(Ask(prompt=(number, 5), num_outputs=number + 3) for number in range(6))
WORKLOAD = Workload(name="W", asks=ASKS, concurrency=2)


async def test_every_request_is_asked_once_and_answers_keep_their_order() -> None:
    server = FakeCompletions()
    async with server.serving() as address:
        outcome = await ask_afresh(address, WORKLOAD)
    assert [answer.tokens for answer in outcome.answers] == [list(range(n + 3)) for n in range(6)]
    assert all(len(a.arrivals) == len(a.tokens) for a in outcome.answers)
    assert all(a.issued_at < a.first_at <= a.last_at for a in outcome.answers)
    assert sorted(body["prompt"][0] for body in server.bodies) == list(range(6))


async def test_prompts_are_token_ids_and_answers_have_a_fixed_length() -> None:
    server = FakeCompletions()
    async with server.serving() as address:
        await ask_afresh(address, WORKLOAD)
    assert server.bodies[0]["prompt"] == [0, 5]
    assert server.bodies[0]["max_tokens"] == 3
    assert (server.bodies[0]["ignore_eos"], server.bodies[0]["temperature"]) == (True, 0)


async def test_no_more_run_at_a_time_than_the_workload_says() -> None:
    server = FakeCompletions()
    async with server.serving() as address:
        await ask_afresh(address, WORKLOAD)
    assert server.most_running == 2


async def test_the_prefix_cache_is_emptied_first() -> None:
    server = FakeCompletions()
    async with server.serving() as address:
        await ask_afresh(address, WORKLOAD)
    assert server.resets == 1


async def test_an_interruption_comes_after_every_stream_has_its_tokens() -> None:
    late = Interruption(ask=Ask(prompt=(99,), num_outputs=2), after_outputs=3)
    workload = dataclasses.replace(WORKLOAD, concurrency=6, interruption=late)
    server = FakeCompletions()
    async with server.serving() as address:
        outcome = await ask_afresh(address, workload)
    assert outcome.late is not None
    assert outcome.late.tokens == [0, 1]
    assert outcome.late.issued_at >= max(answer.arrivals[2] for answer in outcome.answers)


@pytest.mark.parametrize(
    "server", [FakeCompletions(end_early=True), FakeCompletions(status="503 No")]
)
async def test_a_wrong_answer_ends_the_run(server: FakeCompletions) -> None:
    async with server.serving() as address:
        with pytest.raises(ExceptionGroup) as end:
            await ask_afresh(address, WORKLOAD)
    assert end.value.subgroup(ServerFailed) is not None
