from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from common import errors
from common.grpc_server import (
    GrpcServer,
    Link,
    PortUse,
    Service,
    abort,
    channel_options,
    server_options,
    status_of,
)
from common.protocol import FIELD_METADATA, RETRY_AFTER_METADATA
from proto import executor_pb2, executor_pb2_grpc

SERVICE = "octavo.executor.v1.Executor"


class Scripted(executor_pb2_grpc.ExecutorServicer):
    """Answers GetInfo, or raises what it was given; Drain takes long."""

    def __init__(self, error: errors.OctavoError | None = None) -> None:
        self.error = error
        self.draining = asyncio.Event()

    async def GetInfo(self, request: Any, context: Any) -> executor_pb2.GetInfoReply:
        if self.error:
            await abort(context, self.error)
        return executor_pb2.GetInfoReply(incarnation=1)

    async def Drain(self, request: Any, context: Any) -> executor_pb2.DrainReply:
        self.draining.set()
        await asyncio.sleep(request.timeout_ms / 1000)
        return executor_pb2.DrainReply(idle=True)


def make_server(servicer: Scripted, **settings: Any) -> GrpcServer:
    register = partial(executor_pb2_grpc.add_ExecutorServicer_to_server, servicer)
    defaults = {"host": "127.0.0.1", "port": 0, "link": Link.INTERNAL}
    return GrpcServer([Service(SERVICE, register)], **(defaults | settings))


@asynccontextmanager
async def served(servicer: Scripted, **settings: Any) -> AsyncIterator[GrpcServer]:
    server = make_server(servicer, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


def connect(server: GrpcServer, link: Link = Link.INTERNAL) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(server.address, options=channel_options(link))


@pytest.mark.parametrize("client", Link)
@pytest.mark.parametrize("server", Link)
def test_c79_no_shipped_client_pings_faster_than_a_shipped_server_allows(
    client: Link, server: Link
) -> None:
    allowed_ms = dict(server_options(server))["grpc.http2.min_ping_interval_without_data_ms"]
    assert allowed_ms <= dict(channel_options(client))["grpc.keepalive_time_ms"]
    assert dict(server_options(server))["grpc.keepalive_permit_without_calls"] == 1


def test_frozen_peer_is_seen_within_3_seconds_on_the_internal_link() -> None:
    for options in (channel_options(Link.INTERNAL), server_options(Link.INTERNAL)):
        found = dict(options)
        assert found["grpc.keepalive_time_ms"] + found["grpc.http2.ping_timeout_ms"] <= 3000


@pytest.mark.parametrize("link", Link)
def test_c80_messages_of_256_mib_pass_at_both_ends(link: Link) -> None:
    for options in (channel_options(link), server_options(link)):
        assert dict(options)["grpc.max_receive_message_length"] == 256 << 20
        assert dict(options)["grpc.max_send_message_length"] == 256 << 20


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequestError("bad", field="top_p"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.UnauthenticatedError("no key"), grpc.StatusCode.UNAUTHENTICATED),
        (errors.NotFoundError("no such model"), grpc.StatusCode.NOT_FOUND),
        (errors.QueueFullError("full"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.UnavailableError("draining"), grpc.StatusCode.UNAVAILABLE),
        (errors.DeadlineError("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.OwnershipError("owned by s-1"), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_errors_become_statuses_with_their_message(
    error: errors.OctavoError, status: grpc.StatusCode
) -> None:
    async with served(Scripted(error)) as server, connect(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await executor_pb2_grpc.ExecutorStub(channel).GetInfo(executor_pb2.GetInfoRequest())
    assert caught.value.code() is status
    assert str(error) in caught.value.details()


def test_every_error_class_has_a_status() -> None:
    classes = [errors.OctavoError, *errors.OctavoError.__subclasses__()]
    assert all(isinstance(status_of(cls("x")), grpc.StatusCode) for cls in classes)


@pytest.mark.parametrize(
    ("error", "key", "value"),
    [
        (errors.InvalidRequestError("bad", field="top_p"), FIELD_METADATA, "top_p"),
        (errors.QueueFullError("full", retry_after_s=2.5), RETRY_AFTER_METADATA, "2500"),
    ],
)
async def test_what_clients_act_on_is_in_trailing_metadata(
    error: errors.OctavoError, key: str, value: str
) -> None:
    async with served(Scripted(error)) as server, connect(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await executor_pb2_grpc.ExecutorStub(channel).GetInfo(executor_pb2.GetInfoRequest())
    assert caught.value.trailing_metadata()[key] == value


async def test_message_names_the_field_at_fault() -> None:
    error = errors.InvalidRequestError("must be above 0", field="top_p")
    async with served(Scripted(error)) as server, connect(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await executor_pb2_grpc.ExecutorStub(channel).GetInfo(executor_pb2.GetInfoRequest())
    assert caught.value.details() == "top_p: must be above 0"


async def test_health_follows_serving_for_the_whole_and_for_each_service() -> None:
    async with served(Scripted()) as server, connect(server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def statuses() -> set[int]:
            replies = [
                await stub.Check(health_pb2.HealthCheckRequest(service=name))
                for name in ("", SERVICE)
            ]
            return {reply.status for reply in replies}

        assert await statuses() == {health_pb2.HealthCheckResponse.NOT_SERVING}
        await server.set_serving()
        assert await statuses() == {health_pb2.HealthCheckResponse.SERVING}
        await server.set_not_serving()
        assert await statuses() == {health_pb2.HealthCheckResponse.NOT_SERVING}


async def test_reflection_lists_services() -> None:
    async with served(Scripted()) as server:

        def listed() -> list[str]:
            with grpc.insecure_channel(server.address) as channel:
                return list(ProtoReflectionDescriptorDatabase(channel).get_services())

        names = await asyncio.to_thread(listed)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(names)


async def test_address_in_use_is_an_error_that_names_port_and_flag_at_once() -> None:
    async with served(Scripted()) as server:
        port = int(server.address.rsplit(":", 1)[1])
        second = make_server(Scripted(), port=port, port_flag="--grpc-port")
        begin = time.monotonic()
        with pytest.raises(errors.ConfigError, match=rf"{port}.*--grpc-port"):
            await second.start()
        assert time.monotonic() - begin < 2
        await second.stop(0)


async def test_port_held_by_a_foreign_listener_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        server = make_server(Scripted(), port=foreign.getsockname()[1])
        with pytest.raises(errors.ConfigError, match="--port"):
            await server.start()
        await server.stop(0)


async def test_shared_port_takes_several_servers() -> None:
    async with served(Scripted(), port_use=PortUse.SHARED) as first:
        port = int(first.address.rsplit(":", 1)[1])
        async with served(Scripted(), port_use=PortUse.SHARED, port=port) as second:
            assert second.address == first.address


async def test_stop_lets_a_running_call_end_within_the_grace() -> None:
    servicer = Scripted()
    server = make_server(servicer)
    await server.start()
    async with connect(server) as channel:
        stub = executor_pb2_grpc.ExecutorStub(channel)
        call = asyncio.ensure_future(_answer(stub.Drain(executor_pb2.DrainRequest(timeout_ms=200))))
        await servicer.draining.wait()
        await server.stop(10)
        assert (await call).idle


async def test_stop_cuts_a_call_that_outlasts_the_grace() -> None:
    servicer = Scripted()
    server = make_server(servicer)
    await server.start()
    async with connect(server) as channel:
        stub = executor_pb2_grpc.ExecutorStub(channel)
        call = asyncio.ensure_future(
            _answer(stub.Drain(executor_pb2.DrainRequest(timeout_ms=60_000)))
        )
        await servicer.draining.wait()
        await server.stop(0.05)
        with pytest.raises(grpc.aio.AioRpcError):
            await call


async def test_c79_quiet_stream_lives_through_its_own_pings() -> None:
    """Without the server's ping allowance GOAWAY too_many_pings comes after 7.5 s."""
    async with served(Scripted()) as server, connect(server) as channel:
        stub = executor_pb2_grpc.ExecutorStub(channel)
        assert (await stub.Drain(executor_pb2.DrainRequest(timeout_ms=9_500))).idle
        assert channel.get_state() is grpc.ChannelConnectivity.READY


async def _answer(call: Any) -> Any:
    return await call
