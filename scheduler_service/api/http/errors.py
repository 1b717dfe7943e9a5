"""One table from errors to HTTP statuses, and the OpenAI shape every error has."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from difflib import get_close_matches

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from common import errors

log = logging.getLogger(__name__)

_PATH_CONVERTER = re.compile(r":\w+}")
"""Of Starlette: its `{name:path}` is a client's `{name}`."""


class _Kind(msgspec.Struct, frozen=True):
    status: int
    type: str
    code: str


_KINDS: dict[type[errors.OctavoError], _Kind] = {
    errors.InvalidRequestError: _Kind(400, "invalid_request_error", "invalid_request"),
    errors.UnauthenticatedError: _Kind(401, "authentication_error", "invalid_api_key"),
    errors.NotFoundError: _Kind(404, "invalid_request_error", "model_not_found"),
    errors.TooLargeError: _Kind(413, "invalid_request_error", "request_too_large"),
    errors.QueueFullError: _Kind(429, "rate_limit_error", "queue_full"),
    errors.UnavailableError: _Kind(503, "service_unavailable_error", "unavailable"),
    errors.ExecutorLostError: _Kind(503, "service_unavailable_error", "unavailable"),
    errors.DeadlineError: _Kind(504, "timeout_error", "deadline_exceeded"),
    errors.OctavoError: _Kind(500, "internal_error", "internal"),
}


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct):
    error: _Error


def status_of(error: errors.OctavoError) -> int:
    return _kind_of(error).status


def error_body(error: errors.OctavoError) -> ErrorBody:
    kind = _kind_of(error)
    param = error.field if isinstance(error, errors.InvalidRequestError) else None
    if isinstance(error, errors.NotFoundError):
        param = "model"
    return ErrorBody(_Error(str(error), kind.type, param, kind.code))


def error_response(error: errors.OctavoError) -> Response:
    return _json(error_body(error), status_of(error), _headers(error))


def _kind_of(error: errors.OctavoError) -> _Kind:
    """Of the error's class or of its nearest listed base."""
    return next(_KINDS[cls] for cls in type(error).__mro__ if cls in _KINDS)


def _headers(error: errors.OctavoError) -> dict[str, str]:
    if isinstance(error, errors.UnauthenticatedError):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, errors.QueueFullError):
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    return {"retry-after": "1"} if status_of(error) == 503 else {}


def _json(body: ErrorBody, status: int, headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def _on_octavo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.OctavoError)
    if status_of(error) == 500:
        log.error("request failed: %s", error, extra={"path": request.url.path})
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Of the framework's own: no such route, no such method."""
    assert isinstance(error, HTTPException)
    code, message = "http_error", str(error.detail)
    if error.status_code == 404:
        code, message = "not_found", f"there is no {request.url.path} here{_near(request)}"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        code, message = "method_not_allowed", f"{request.url.path} takes {allowed}"
    body = ErrorBody(_Error(message, "invalid_request_error", None, code))
    return _json(body, error.status_code, dict(error.headers or {}))


def _near(request: Request) -> str:
    """The route that was probably meant, or all of them."""
    paths = [_PATH_CONVERTER.sub("}", route.path) for route in request.app.routes]
    found = get_close_matches(request.url.path, paths, n=1, cutoff=0.75)
    return f"; did you mean {found[0]}?" if found else f"; there are {', '.join(paths)}"


async def _on_bug(request: Request, error: Exception) -> Response:
    """The server logs the exception itself, once this answer is out."""
    return error_response(errors.OctavoError("internal error"))


async def _on_client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads this."""
    return Response(status_code=499)


EXCEPTION_HANDLERS: Mapping[type[Exception], ExceptionHandler] = {
    errors.OctavoError: _on_octavo_error,
    HTTPException: _on_http_exception,
    ClientDisconnect: _on_client_gone,
    Exception: _on_bug,
}
