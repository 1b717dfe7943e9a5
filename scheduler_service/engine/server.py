"""The loop's side of the local socket: one `WorkerLink` per API worker.

Rule 1: a slow, stuck or dead worker never blocks the loop. The loop only appends to a link's
outbox; a task per link writes. Rule 2: a worker that floods commands is not read until the loop
has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Protocol

import msgspec

from common.errors import TooLargeError
from scheduler_service.engine.framing import frame, read_frame
from scheduler_service.engine.messages import Command
from scheduler_service.engine.outbox import MAX_ENTRIES, Outbox

log = logging.getLogger(__name__)


class WorkerLink:
    """One worker as the loop sees it."""

    def __init__(
        self, number: int, writer: asyncio.StreamWriter, *, max_entries: int = MAX_ENTRIES
    ) -> None:
        self.number = number
        self.outbox = Outbox()
        self._writer = writer
        self._max_entries = max_entries
        self._encoder = msgspec.msgpack.Encoder()
        self._has_news = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def flush(self) -> None:
        """Has the outbox written soon. Never waits; drops a worker that has stopped reading."""
        if self.outbox.num_entries > self._max_entries:
            log.error("a worker does not read; dropping it", extra={"worker": self.number})
            self.outbox.take()
            self._writer.transport.abort()
        elif self.outbox.num_entries:
            self._is_idle.clear()
            self._has_news.set()

    async def flushed(self) -> None:
        """Waits until everything put so far is with the kernel."""
        await self._is_idle.wait()

    async def write(self) -> None:
        """Writes the outbox whenever there is something and the socket has room, until it fails."""
        try:
            while True:
                await self._has_news.wait()
                self._has_news.clear()
                for update in self.outbox.take():
                    self._writer.write(frame(self._encoder.encode(update)))
                await self._writer.drain()
                if not self._has_news.is_set():
                    self._is_idle.set()
        except (ConnectionError, TooLargeError) as error:
            log.warning("a worker is lost: %s", error, extra={"worker": self.number})
            self._writer.transport.abort()
            self._is_idle.set()

    def close(self) -> None:
        self._is_idle.set()
        self._writer.close()


class Engine(Protocol):
    """What the server needs of the loop."""

    def worker_joined(self, worker: WorkerLink) -> None: ...

    def worker_left(self, worker: WorkerLink) -> None: ...

    def receive(self, worker: WorkerLink, commands: list[Command]) -> None: ...

    async def caught_up(self) -> None:
        """Returns once few enough commands wait."""


class EngineServer:
    """Accepts workers on a unix socket until it is stopped."""

    def __init__(self, path: str, engine: Engine) -> None:
        self._path = path
        self._engine = engine
        self._server: asyncio.Server | None = None
        self._links: dict[WorkerLink, asyncio.Task[None]] = {}
        self._num_workers_seen = 0

    async def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # left by a process that was killed
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        os.chmod(self._path, 0o600)

    async def stop(self, *, timeout_s: float = 1.0) -> None:
        """Stops accepting, gives workers `timeout_s` to take what waits, and closes the links."""
        if self._server is None:
            return
        self._server.close()
        flushes = [link.flushed() for link in self._links]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*flushes), timeout_s)
        tasks = list(self._links.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_workers_seen += 1
        link = WorkerLink(self._num_workers_seen, writer)
        task = asyncio.current_task()
        assert task is not None
        self._links[link] = task
        writing = asyncio.create_task(link.write())
        self._engine.worker_joined(link)
        try:
            await self._read(link, reader)
        except asyncio.CancelledError:
            log.debug("link closed", extra={"worker": link.number})
        finally:
            del self._links[link]
            self._engine.worker_left(link)
            writing.cancel()
            link.close()
            await asyncio.gather(writing, return_exceptions=True)

    async def _read(self, link: WorkerLink, reader: asyncio.StreamReader) -> None:
        decoder = msgspec.msgpack.Decoder(list[Command])
        while True:
            await self._engine.caught_up()
            try:
                payload = await read_frame(reader)
                if payload is None:
                    return
                commands = decoder.decode(payload)
            except (msgspec.DecodeError, TooLargeError):
                log.exception("a worker sent nonsense; dropping it", extra={"worker": link.number})
                return
            self._engine.receive(link, commands)
