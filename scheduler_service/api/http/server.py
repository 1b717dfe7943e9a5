"""Runs an ASGI app with uvicorn inside a running event loop. Signals stay with the process."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from common.errors import ConfigError
from common.grpc_server import PortUse, join_address
from scheduler_service.api.http.protocol import LimitedHttpProtocol

_BACKLOG = 2048


class HttpServer:
    """`start`, then `stop`."""

    def __init__(
        self, app: ASGIApp, *, host: str, port: int, port_use: PortUse, grace_s: float
    ) -> None:
        """`grace_s`: what running requests get to end when the server stops."""
        self._host = host
        self._port = port
        self._port_use = port_use
        config = uvicorn.Config(
            app,
            http=LimitedHttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(grace_s),
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """host:port, with the port really bound once `start` has returned."""
        return join_address(self._host, self._port)

    async def start(self) -> None:
        """Binds and serves. ConfigError when the address cannot be had."""
        bound = _bind(self._host, self._port, self._port_use)
        self._port = bound.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve([bound]))

    async def stop(self) -> None:
        """Accepts no more, lets running requests end within the grace, then cancels them."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
            # Cancelled ones are told so, not waited for, by uvicorn.
            await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)
            self._serving = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone: the worker's owner says when to stop."""
        yield


def _bind(host: str, port: int, port_use: PortUse) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port_use is PortUse.SHARED:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error};"
            " choose another with --port (0: any free one)"
        ) from error
    return bound
