"""Server-sent events, written by hand: `data: <json>` and an empty line, `[DONE]` at the end.

The headers go out with the first event, so that an error before it is a plain HTTP error. After
it, an error is one event of the usual error shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

import msgspec
from starlette.types import Send

from common.errors import OctavoError
from scheduler_service.api.http.errors import error_body

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._encoder = msgspec.json.Encoder()
        self._has_started = False

    async def write(self, events: Iterable[msgspec.Struct]) -> None:
        """All in one piece; waits while the client's connection is full."""
        encode = self._encoder.encode
        await self._write(b"".join(b"data: %b\n\n" % encode(event) for event in events))

    async def end(self) -> None:
        await self._write(b"data: [DONE]\n\n")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    @contextlib.asynccontextmanager
    async def telling_errors(self) -> AsyncIterator[None]:
        """An error inside becomes an event and the end, once the stream has started."""
        try:
            yield
        except OctavoError as error:
            if not self._has_started:
                raise
            await self.write([error_body(error)])
            await self.end()

    async def _write(self, data: bytes) -> None:
        if not data:
            return
        if not self._has_started:
            self._has_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
