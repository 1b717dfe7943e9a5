"""Messages just under and just over the cap, both ways; the cap is lowered, since 256 MiB are slow.

C numbers name acceptance cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio

from common import grpc_server
from common.codec import PlanDecoder, PlanEncoder
from common.grpc_server import GrpcServer, Link, Service, channel_options
from common.plan import StepPlan
from proto import executor_pb2, executor_pb2_grpc
from tests.support.plans import add_chunk, make_spec

_CAP = 1 << 20
_MARGIN = 64
"""More than the fields around the long one take."""


class _Echo(executor_pb2_grpc.ExecutorServicer):
    """Hello answers with as many bytes as were asked for; Drain waits for the word."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.draining = asyncio.Event()

    async def Hello(self, request: Any, context: Any) -> executor_pb2.HelloReply:  # noqa: N802
        return executor_pb2.HelloReply(model_name="x" * request.epoch)

    async def Drain(self, request: Any, context: Any) -> executor_pb2.DrainReply:  # noqa: N802
        self.draining.set()
        await self.may_end.wait()
        return executor_pb2.DrainReply(idle=True)


@pytest.fixture(params=Link)
def link(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Link:
    monkeypatch.setattr(grpc_server, "MAX_MESSAGE_BYTES", _CAP)
    return Link(request.param)


@pytest.fixture
def echo() -> _Echo:
    return _Echo()


@pytest_asyncio.fixture
async def channel(link: Link, echo: _Echo) -> AsyncIterator[grpc.aio.Channel]:
    register = partial(executor_pb2_grpc.add_ExecutorServicer_to_server, echo)
    server = GrpcServer([Service("x", register)], host="127.0.0.1", port=0, link=link)
    await server.start()
    async with grpc.aio.insecure_channel(server.address, options=channel_options(link)) as made:
        yield made
    await server.stop(0)


async def test_c80_a_message_over_the_cap_fails_its_own_call_and_no_other(
    channel: grpc.aio.Channel, echo: _Echo
) -> None:
    stub = executor_pb2_grpc.ExecutorStub(channel)
    beside = asyncio.ensure_future(_answer(stub.Drain(executor_pb2.DrainRequest())))
    await echo.draining.wait()
    long, too_long = _CAP - _MARGIN, _CAP + 1
    await stub.Hello(executor_pb2.HelloRequest(scheduler_id="x" * long))
    reply = await stub.Hello(executor_pb2.HelloRequest(epoch=long))
    assert len(reply.model_name) == long
    for request in (
        executor_pb2.HelloRequest(scheduler_id="x" * too_long),
        executor_pb2.HelloRequest(epoch=too_long),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Hello(request)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert channel.get_state() is grpc.ChannelConnectivity.READY
    await stub.Hello(executor_pb2.HelloRequest())
    assert not beside.done()
    echo.may_end.set()
    assert (await beside).idle


async def _answer(call: Any) -> Any:
    return await call


def test_c80_a_step_of_256_sequences_with_tables_of_8192_blocks_fits() -> None:
    """Beside all their tokens, as the first step of a new stream sends them."""
    plan = StepPlan(step_id=1, num_decodes=256)
    tokens, num_tokens_left_out = [7] * 1072, 130_000
    for number in range(256):
        spec = make_spec(number + 1, 16)
        table = range(number * 8192, (number + 1) * 8192)
        add_chunk(plan, spec, tokens, table, start=1071, length=1, samples=[spec])
    message = PlanEncoder(256).encode(plan, incarnation=1, epoch=1)
    size = message.ByteSize() + 256 * 4 * num_tokens_left_out
    assert 128 << 20 < size < grpc_server.MAX_MESSAGE_BYTES
    received = executor_pb2.StepMessage.FromString(message.SerializeToString())
    decoded = PlanDecoder(256, incarnation=1, epoch=1).decode(received)
    assert list(decoded.table_lengths) == [8192] * 256
    assert decoded.table_buffers[255][8191] == 256 * 8192 - 1
