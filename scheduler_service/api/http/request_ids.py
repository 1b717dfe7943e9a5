"""X-Request-Id: the client's own where it is acceptable, else one of ours, on every answer."""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_service.api.request_id import is_acceptable_id

_HEADER = b"x-request-id"


class RequestIds:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (_HEADER, request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == _HEADER and is_acceptable_id(value.decode("latin-1")):
            return bytes(value)
    return f"req-{secrets.token_hex(12)}".encode()
