"""The API key, for HTTP and gRPC: `authorization: Bearer <key>`, checked before anything is read.

Whatever is not on the short list of open routes needs the key, so a route added later is closed
until somebody opens it. /metrics is closed too: its labels and counts are the operator's. The
scheme is taken only as `Bearer`, the way every client writes it.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from starlette.types import ASGIApp, Receive, Scope, Send

from common.errors import UnauthenticatedError
from scheduler_service.api.http.errors import error_response

OPEN_PATHS = frozenset({"/health", "/health/ready"})
OPEN_METHOD_PREFIX = "/grpc.health.v1.Health/"

_REFUSAL = "send your API key as `authorization: Bearer <key>`"
_SCHEME = b"Bearer "


class ApiKey:
    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def admits(self, authorization: bytes | None) -> bool:
        """Takes as long for a nearly right key as for any other."""
        if authorization is None or not authorization.startswith(_SCHEME):
            return False
        return hmac.compare_digest(authorization[len(_SCHEME) :], self._key)


class HttpKeyGate:
    """ASGI middleware; stands before routing and body."""

    def __init__(self, app: ASGIApp, key: ApiKey) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1 and self._key.admits(given[0]):
            await self._app(scope, receive, send)
        else:
            await error_response(UnauthenticatedError(_REFUSAL))(scope, receive, send)


class GrpcKeyGate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg, misc]
    """Refuses every method but health checks, reflection included."""

    def __init__(self, key: ApiKey) -> None:
        self._key = key

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(OPEN_METHOD_PREFIX):
            return handler
        metadata = handler_call_details.invocation_metadata or ()
        given = [_bytes(value) for name, value in metadata if name == "authorization"]
        if len(given) == 1 and self._key.admits(given[0]):
            return handler
        return _refusing(handler)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _refusing(handler: Any) -> Any:
    """A handler of the same kind of call that ends it UNAUTHENTICATED."""

    async def refuse(request_or_iterator: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)

    async def refuse_stream(request_or_iterator: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)
        yield  # an async generator, as streaming calls have

    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse_stream)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse_stream)
    return grpc.unary_unary_rpc_method_handler(refuse)
