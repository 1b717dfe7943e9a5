"""Limits on heads of requests, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from common.grpc_server import PortUse
from scheduler_service.api.http import protocol
from scheduler_service.api.http.app import build_app
from scheduler_service.api.http.server import HttpServer
from scheduler_service.api.service import Service


@pytest_asyncio.fixture
async def server(service: Service) -> AsyncIterator[HttpServer]:
    made = HttpServer(
        build_app(service), host="127.0.0.1", port=0, port_use=PortUse.EXCLUSIVE, grace_s=1.0
    )
    await made.start()
    yield made
    await made.stop()


async def connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answer_to(server: HttpServer, *parts: bytes) -> bytes:
    """Whatever came before the server closed or went silent behind the first answer."""
    reader, writer = await connect(server)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.readuntil(b"}")
    except ConnectionError:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"x-big: " + b"a" * (1 << 20),
        b"".join(b"x-%d: 1\r\n" % i for i in range(100_000)),
        b"cookie: " + b"a" * 70_000,
    ],
    ids=["one huge", "very many", "just over"],
)
async def test_a_head_over_the_limit_is_refused(server: HttpServer, head: bytes) -> None:
    answer = await answer_to(server, b"GET /health HTTP/1.1\r\nhost: x\r\n" + head)
    assert answer.startswith(b"HTTP/1.1 431") or answer == b""


async def test_a_large_body_in_the_same_piece_is_no_head(server: HttpServer) -> None:
    content = b'{"prompt": "a", "max_tokens": 1, "user": "' + b"u" * 300_000 + b'"}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content)
    assert (await answer_to(server, head + content)).startswith(b"HTTP/1.1 200")


async def test_a_long_head_within_the_limit_is_taken(server: HttpServer) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: x\r\nx-big: " + b"a" * 60_000
    assert (await answer_to(server, head, b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_an_announced_flood_is_refused_before_it_comes(server: HttpServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2147483648\r\n\r\n"
    assert (await answer_to(server, head + b"{")).startswith(b"HTTP/1.1 413")


async def test_a_connection_that_sends_no_head_is_closed(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIME_LIMIT_S", 0.05)
    for begun in (b"", b"GET /health HTTP/1.1\r\nhost:"):
        reader, writer = await connect(server)
        writer.write(begun)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_the_unread_rest_of_a_body_does_not_hold_the_connection(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", 0.05)
    reader, writer = await connect(server)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n{")
    async with asyncio.timeout(5):
        assert (await reader.read()).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_a_connection_serves_one_request_after_another(server: HttpServer) -> None:
    reader, writer = await connect(server)
    for _ in range(3):
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    writer.close()
