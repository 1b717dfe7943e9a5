from __future__ import annotations

import asyncio
from functools import partial

import pytest

from common.grpc_server import GrpcServer, Link
from common.health_probe import main


async def probe(*arguments: str) -> int:
    return await asyncio.get_running_loop().run_in_executor(None, partial(main, arguments))


async def test_it_tells_serving_from_not_serving_and_from_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = GrpcServer([], host="127.0.0.1", port=0, link=Link.INTERNAL)
    await server.start()
    assert await probe(server.address) == 1
    assert "NOT_SERVING" in capsys.readouterr().err
    await server.set_serving()
    assert await probe(server.address) == 0
    await server.stop(0)
    assert await probe(server.address) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


async def test_a_proxy_for_the_internet_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = GrpcServer([], host="127.0.0.1", port=0, link=Link.INTERNAL)
    await server.start()
    await server.set_serving()
    assert await probe(server.address) == 0
    await server.stop(0)


async def test_it_says_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert await probe() == 2
    assert "HOST:PORT" in capsys.readouterr().err
