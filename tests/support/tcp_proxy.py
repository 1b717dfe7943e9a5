"""A TCP connection in the middle, which can break it in the ways a network does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class TcpProxy:
    """Forwards both ways until told otherwise."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._may_forward = asyncio.Event()
        self._may_forward.set()
        self._server: asyncio.Server | None = None
        self._upstream: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """The address to connect to."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def blackhole(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._may_forward.clear()

    def reset(self) -> None:
        """The server gets RST in place of an end."""
        for writer in self._upstream:
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        self._upstream.append(server_writer)
        for source, sink in ((reader, server_writer), (server_reader, writer)):
            task = asyncio.create_task(self._forward(source, sink))
            self._tasks.add(task)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._may_forward.wait()
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


@contextlib.asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[tuple[TcpProxy, str]]:
    proxy = TcpProxy(target)
    address = await proxy.start()
    try:
        yield proxy, address
    finally:
        await proxy.stop()
