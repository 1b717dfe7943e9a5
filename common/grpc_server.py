"""Serving gRPC: channel options, one table from errors to statuses, health, reflection, stopping.

The options come in two kinds. INTERNAL joins scheduler and executor: a peer that froze must be
seen within 3 s, which takes `ping_timeout_ms`, since `keepalive_timeout_ms` alone needs 60 s.
PUBLIC joins clients and scheduler, over networks where pings cost more than waiting. Servers of
both kinds allow a ping each second, with or without calls: a stricter server answers a client's
keepalive with GOAWAY `too_many_pings` and every stream on the channel dies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, NoReturn

import grpc

from common import errors
from common.errors import ConfigError
from common.protocol import FIELD_METADATA, RETRY_AFTER_METADATA

log = logging.getLogger(__name__)

Options = list[tuple[str, int]]

MAX_MESSAGE_BYTES = 256 << 20

_MIN_PING_INTERVAL_MS = 1_000


class Link(Enum):
    INTERNAL = "internal"
    PUBLIC = "public"


class PortUse(Enum):
    EXCLUSIVE = 0
    """A second process on the port is an error."""
    SHARED = 1
    """SO_REUSEPORT: the kernel spreads connections over the processes that listen."""


def channel_options(link: Link) -> Options:
    """Options of a client's channel."""
    time_ms, timeout_ms = {Link.INTERNAL: (1_500, 1_000), Link.PUBLIC: (30_000, 10_000)}[link]
    return [
        *_message_caps(),
        ("grpc.keepalive_time_ms", time_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def server_options(link: Link, port_use: PortUse = PortUse.EXCLUSIVE) -> Options:
    """Options of a server."""
    time_ms, timeout_ms = {Link.INTERNAL: (1_500, 1_000), Link.PUBLIC: (10_000, 5_000)}[link]
    return [
        *_message_caps(),
        ("grpc.keepalive_time_ms", time_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # What the server tolerates; the key has no "recv" in it, and an unknown key is ignored.
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.so_reuseport", port_use.value),
    ]


def _message_caps() -> Options:
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]


_STATUSES: dict[type[errors.OctavoError], grpc.StatusCode] = {
    errors.InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    # Not RESOURCE_EXHAUSTED, which asks the client to try the same again later.
    errors.TooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.ExecutorLostError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.OwnershipError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ModelError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ResyncError: grpc.StatusCode.ABORTED,
    errors.InvariantError: grpc.StatusCode.INTERNAL,
    errors.OctavoError: grpc.StatusCode.INTERNAL,
}


def status_of(error: errors.OctavoError) -> grpc.StatusCode:
    """The status of the error's class or of its nearest listed base."""
    return next(_STATUSES[cls] for cls in type(error).__mro__ if cls in _STATUSES)


def trailing_metadata(error: errors.OctavoError) -> tuple[tuple[str, str], ...]:
    """What a client's code can act on beside the status."""
    if isinstance(error, errors.InvalidRequestError) and error.field:
        return ((FIELD_METADATA, error.field),)
    if isinstance(error, errors.QueueFullError):
        return ((RETRY_AFTER_METADATA, str(round(error.retry_after_s * 1000))),)
    return ()


async def abort(context: Any, error: errors.OctavoError) -> NoReturn:
    """Ends the call of an aio servicer with the error's status, message and metadata."""
    message = str(error)
    if isinstance(error, errors.InvalidRequestError) and error.field and error.field not in message:
        message = f"{error.field}: {message}"
    await context.abort(status_of(error), message, trailing_metadata(error))
    raise error  # not reached: abort raises; says so to the type checker


class Service(NamedTuple):
    """A servicer and how to register it.

    As in `Service("octavo.v1.Inference", partial(add_InferenceServicer_to_server, servicer))`.
    """

    name: str
    register: Callable[[grpc.aio.Server], None]


class GrpcServer:
    """An aio server with health and reflection. Create it inside the running event loop.

    Health is NOT_SERVING, for "" and each service name, until `set_serving`.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        host: str,
        port: int,
        link: Link,
        port_use: PortUse = PortUse.EXCLUSIVE,
        port_flag: str = "--port",
        interceptors: Sequence[Any] = (),
    ) -> None:
        """`interceptors` see every call, health and reflection included."""
        self._host = host
        self._port = port
        self._port_flag = port_flag
        self._names = ("", *(service.name for service in services))
        self._server = grpc.aio.server(
            interceptors=list(interceptors), options=server_options(link, port_use)
        )
        for service in services:
            service.register(self._server)
        # Imported by servers alone: clients, and errors as statuses, need grpcio and no more.
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc
        from grpc_reflection.v1alpha import reflection

        self._statuses = health_pb2.HealthCheckResponse
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._names[1:], health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    @property
    def address(self) -> str:
        """host:port, with the port really bound once `start` has returned."""
        return join_address(self._host, self._port)

    async def start(self) -> int:
        """Binds and serves; returns the port. ConfigError when the address cannot be had."""
        try:
            self._port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise ConfigError(self._bind_failure()) from error
        if self._port == 0:
            raise ConfigError(self._bind_failure())
        await self.set_not_serving()
        await self._server.start()
        return self._port

    async def set_serving(self) -> None:
        await self._set_health(self._statuses.SERVING)

    async def set_not_serving(self) -> None:
        """Health says NOT_SERVING; calls are still served."""
        await self._set_health(self._statuses.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, gives running ones `grace_s`, then cancels them."""
        await self.set_not_serving()
        await self._server.stop(grace_s)

    async def _set_health(self, status: Any) -> None:
        for name in self._names:
            await self._health.set(name, status)

    def _bind_failure(self) -> str:
        return (
            f"cannot listen on {self._host} port {self._port}: the port is in use or the address is"
            f" not this machine's; choose another with {self._port_flag} (0: any free one)"
        )


def join_address(host: str, port: int) -> str:
    """host:port, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
