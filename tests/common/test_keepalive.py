"""Pings of clients that wait for long are tolerated by the servers that ship.

Without a server's allowance a client that pings gets GOAWAY `too_many_pings` after a few, and every
stream on its connection dies. C numbers name acceptance cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from common.grpc_server import GrpcServer, Link, Options, Service, channel_options
from proto import executor_pb2, executor_pb2_grpc


class _Slow(executor_pb2_grpc.ExecutorServicer):
    """GetModel sends a part per pause; the pause is the fingerprint that is known, in seconds."""

    async def GetModel(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[executor_pb2.ModelPart]:
        for _ in range(3):
            await asyncio.sleep(float(request.known_fingerprint))
            yield executor_pb2.ModelPart(fingerprint="part")

    async def GetInfo(self, request: Any, context: Any) -> executor_pb2.GetInfoReply:  # noqa: N802
        return executor_pb2.GetInfoReply(incarnation=1)


def _pinging_every(seconds: float) -> Options:
    time_ms = int(seconds * 1000)
    options = dict(channel_options(Link.PUBLIC)) | {"grpc.keepalive_time_ms": time_ms}
    return [*options.items(), ("grpc.use_local_subchannel_pool", 1)]


@asynccontextmanager
async def _watched(channel: grpc.aio.Channel) -> AsyncIterator[list[grpc.ChannelConnectivity]]:
    """Every state that the channel was in: one that stays READY has one connection throughout."""
    states = [channel.get_state(try_to_connect=True)]

    async def watch() -> None:
        while True:
            await channel.wait_for_state_change(states[-1])
            states.append(channel.get_state())

    watching = asyncio.create_task(watch())
    yield states
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def _wait_talk_and_burst(
    address: str, options: Options, *, idle_s: float, pause_s: float
) -> None:
    """Nothing for a while, a slow stream, then many calls at once, all over one connection."""
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stub = executor_pb2_grpc.ExecutorStub(channel)
        await stub.GetInfo(executor_pb2.GetInfoRequest())
        async with _watched(channel) as states:
            await asyncio.sleep(idle_s)
            request = executor_pb2.GetModelRequest(known_fingerprint=str(pause_s))
            parts = [part async for part in stub.GetModel(request)]
            burst = (_answer(stub.GetInfo(executor_pb2.GetInfoRequest())) for _ in range(200))
            await asyncio.gather(*burst)
            assert len(parts) == 3
            assert set(states) == {grpc.ChannelConnectivity.READY}, states


async def _answer(call: Any) -> Any:
    return await call


async def _serve_all(link: Link, keepalives_s: list[float], **times: float) -> None:
    register = partial(executor_pb2_grpc.add_ExecutorServicer_to_server, _Slow())
    server = GrpcServer([Service("x", register)], host="127.0.0.1", port=0, link=link)
    await server.start()
    clients = [_pinging_every(seconds) for seconds in keepalives_s]
    clients += [[*channel_options(kind), ("grpc.use_local_subchannel_pool", 1)] for kind in Link]
    try:
        await asyncio.gather(
            *(_wait_talk_and_burst(server.address, options, **times) for options in clients)
        )
    finally:
        await server.stop(0)


async def test_c79_no_goaway_however_fast_a_client_may_ping() -> None:
    """As fast as a server allows, so that the third ping too many would come within 3 s."""
    await _serve_all(Link.PUBLIC, [1.0], idle_s=4.0, pause_s=1.0)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("link", Link)
async def test_c79_no_goaway_within_five_minutes(link: Link) -> None:
    await _serve_all(link, [5.0, 10.0], idle_s=240.0, pause_s=20.0)
