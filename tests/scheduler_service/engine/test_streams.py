"""A request's stream on the worker's side."""

from __future__ import annotations

import asyncio

from common.plan import TokenLogprobs
from scheduler_service.engine.messages import Admitted, Finished, Refused
from scheduler_service.engine.streams import RequestStream


async def test_everything_since_the_last_read_is_one_update() -> None:
    stream = RequestStream()
    stream.push_admitted(Admitted(1, 16))
    for token in (1, 2, 3):
        stream.push_token(0, token, None)
    stream.push_token(1, 9, None)
    stream.push_finished(Finished(1, 0, "stop", 3))
    update = await stream.next()
    assert update.admitted == Admitted(1, 16)
    assert update.tokens == {0: [1, 2, 3], 1: [9]}
    assert [finished.reason for finished in update.finished] == ["stop"]
    stream.push_token(1, 10, None)
    assert (await stream.next()).tokens == {1: [10]}


async def test_a_reader_that_waits_is_woken_by_the_first_push() -> None:
    stream = RequestStream()
    reading = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    assert not reading.done()
    stream.push_token(0, 5, TokenLogprobs(1, (5,), (-1.0,)))
    update = await reading
    assert update.tokens == {0: [5]}
    assert update.logprobs == {0: [TokenLogprobs(1, (5,), (-1.0,))]}


async def test_a_reader_may_give_up_and_another_read_later() -> None:
    stream = RequestStream()
    reading = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    stream.push_lost("gone")
    assert (await stream.next()).lost == "gone"


async def test_a_refusal_is_told() -> None:
    stream = RequestStream()
    refused = Refused(1, "invalid", "max_tokens", "too many")
    stream.push_refused(refused)
    assert (await stream.next()).refused == refused
