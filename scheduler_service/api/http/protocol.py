"""uvicorn's HTTP/1.1 protocol with limits it does not have: size and time of a request's head.

Without them one connection can fill memory with headers, and idle ones stay for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
HEAD_TIME_LIMIT_S = 20.0
LINGER_S = 5.0
"""For the rest of a body that was answered before it was read, such as one that is too long."""

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
)
_TOO_LARGE_BODY = (
    b'{"error":{"message":"the request\'s headers are over %d bytes",'
    b'"type":"invalid_request_error","param":null,"code":"headers_too_large"}}' % MAX_HEAD_BYTES
)


class LimitedHttpProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_head_bytes = 0
        self._is_in_head = True
        self._is_message_complete = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._close_in(HEAD_TIME_LIMIT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._num_head_bytes += len(data)
        super().data_received(data)
        # A piece that ends a head may hold much of the body: only an unfinished head is too long.
        if self._is_in_head and self._num_head_bytes > MAX_HEAD_BYTES:
            self.transport.write(_TOO_LARGE % (len(_TOO_LARGE_BODY), _TOO_LARGE_BODY))
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._is_message_complete = False
        self._close_in(HEAD_TIME_LIMIT_S)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._num_head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head = True
        self._is_message_complete = True
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_message_complete:
            self._close_in(LINGER_S)

    def _close_in(self, delay_s: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(delay_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
