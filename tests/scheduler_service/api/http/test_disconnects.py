"""Clients that leave, over real sockets: one abort each, none for those that stay to the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from common.grpc_server import PortUse
from scheduler_service.api.http.app import build_app
from scheduler_service.api.http.server import HttpServer
from scheduler_service.api.service import Service
from tests.scheduler_service.api.conftest import Script
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.raw_http_client import RawHttpClient
from tests.support.smol_files import IM_END


@pytest_asyncio.fixture
async def server(service: Service) -> AsyncIterator[HttpServer]:
    made = HttpServer(
        build_app(service), host="127.0.0.1", port=0, port_use=PortUse.EXCLUSIVE, grace_s=1.0
    )
    await made.start()
    yield made
    await made.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queued", "admitted", "decoding"])
async def test_leaving_aborts_once_in_every_phase(
    server: HttpServer, connection: FakeEngineConnection, phase: str, *, stream: bool
) -> None:
    gate = connection.may_admit if phase == "queued" else connection.may_step
    if phase != "decoding":
        gate.clear()
    for count in range(1, 6):
        client = await RawHttpClient.post(server.address, stream=stream, max_tokens=400)
        await until(lambda count=count: len(connection.submits) == count)
        if phase == "decoding" and stream:
            await client.reader.readuntil(b"data: ")
        connection.may_step.clear()  # what is running now cannot end by itself
        await client.leave()
        await until(lambda count=count: len(connection.aborts) == count)
        if phase == "decoding":
            connection.may_step.set()
    gate.set()
    connection.may_step.set()
    await until(lambda: connection.num_live == 0)
    assert len(set(connection.aborts)) == 5
    assert connection.useless_aborts == []


async def test_leaving_aborts_every_prompt_of_the_request(
    server: HttpServer, connection: FakeEngineConnection
) -> None:
    connection.may_step.clear()
    client = await RawHttpClient.post(server.address, prompt=["a", "b", "c"], n=2, max_tokens=400)
    await until(lambda: len(connection.submits) == 3)
    await client.leave()
    await until(lambda: len(connection.aborts) == 3)
    assert connection.num_live == 0
    assert connection.useless_aborts == []


async def test_only_those_that_leave_are_aborted(
    server: HttpServer, script: Script, connection: FakeEngineConnection
) -> None:
    script.say(" a short answer", then=[IM_END])
    for _ in range(20):
        client = await RawHttpClient.post(
            server.address, stream=True, ignore_eos=False, max_tokens=50
        )
        answer = await client.reader.readuntil(b"data: [DONE]\n\n")
        assert answer.startswith(b"HTTP/1.1 200")
        await client.leave()
    script.say_ids([300] * 1000)
    for count in range(1, 11):
        client = await RawHttpClient.post(server.address, stream=True, max_tokens=400)
        await client.reader.readuntil(b"data: ")
        await client.leave()
        await until(lambda count=count: connection.num_live == 0)
    # One that ran to its end before the word of the leaving came needed no abort.
    assert len(connection.aborts) <= 10
    assert connection.useless_aborts == []


async def test_a_client_that_does_not_read_holds_up_nobody(
    server: HttpServer, connection: FakeEngineConnection, script: Script
) -> None:
    script.say(" white noise" * 400)
    slow = await RawHttpClient.post(
        server.address, limit=1024, stream=True, max_tokens=400, return_token_ids=True, n=8
    )
    await until(lambda: bool(connection.submits) and connection.num_live == 0)
    quick = await RawHttpClient.post(server.address, max_tokens=3)
    head = await quick.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    events = await slow.read_to(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert events.count(b'"finish_reason":"length"') == 8
    assert connection.aborts == []
    await slow.leave()
    await quick.leave()


async def test_stopping_lets_a_running_stream_end(
    server: HttpServer, connection: FakeEngineConnection, script: Script
) -> None:
    script.say(" one two three", then=[IM_END])
    connection.may_step.clear()
    client = await RawHttpClient.post(server.address, stream=True, ignore_eos=False, max_tokens=50)
    await until(lambda: bool(connection.submits))
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    connection.may_step.set()
    assert b"data: [DONE]" in await client.read_to(b"0\r\n\r\n")
    await stopping
    await client.leave()
    assert connection.aborts == []


async def test_stopping_aborts_what_does_not_end_in_time(
    server: HttpServer, connection: FakeEngineConnection
) -> None:
    connection.may_step.clear()
    client = await RawHttpClient.post(server.address, stream=True, max_tokens=50)
    await until(lambda: bool(connection.submits))
    await server.stop()
    assert len(connection.aborts) == 1
    await client.leave()
