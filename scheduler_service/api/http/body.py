"""Request bodies: JSON objects, limited in size, depth and time."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from common.errors import InvalidRequestError, TooLargeError
from scheduler_service.api.fields import Fields

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
_READ_TIME_LIMIT_S = 60.0
_NOT_JSON = re.compile(rb"\b(NaN|Infinity)\b")
_SHORT_BODY_BYTES = 256 << 10
"""Parses within a few milliseconds."""
_MAX_LOGGED_NAMES, _MAX_LOGGED_CHARS = 16, 60


async def read_body(request: Request, read: Callable[[Fields], T]) -> T:
    """What `read` makes of the body's fields; a long body is parsed and read on a thread.

    InvalidRequestError if it is no JSON object, TooLargeError if it is too long. Fields that `read`
    does not ask for are ignored, as OpenAI's and vLLM's servers ignore them, and logged at debug.
    """

    def read_and_log(fields: Fields) -> T:
        value = read(fields)
        _log_ignored(fields)
        return value

    return await _read_by(request, read_and_log)


def _log_ignored(fields: Fields) -> None:
    if log.isEnabledFor(logging.DEBUG) and fields.ignored:
        names = [name[:_MAX_LOGGED_CHARS] for name in fields.ignored[:_MAX_LOGGED_NAMES]]
        log.debug("fields of the request were ignored", extra={"fields": names})


async def read_fields(request: Request) -> Fields:
    return await _read_by(request, lambda fields: fields)


async def _read_by(request: Request, read: Callable[[Fields], T]) -> T:
    body = await _read(request)
    if len(body) <= _SHORT_BODY_BYTES:
        return read(Fields(_parse(body)))
    return await asyncio.to_thread(lambda: read(Fields(_parse(body))))


async def _read(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > MAX_BODY_BYTES:
        _fail_size()
    body = bytearray()
    try:
        async with asyncio.timeout(_READ_TIME_LIMIT_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    _fail_size()
    except TimeoutError:
        raise InvalidRequestError(
            f"the request's body did not arrive within {_READ_TIME_LIMIT_S:g} s"
        ) from None
    return bytes(body)


def _fail_size() -> None:
    raise TooLargeError(f"the request's body is over {MAX_BODY_BYTES} bytes; send less at a time")


def _likely_cause(body: bytes) -> str:
    if not body.strip():
        return "; the body is empty"
    if _NOT_JSON.search(body):
        return "; NaN and Infinity are no numbers of JSON, though some libraries write them"
    return ""


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidRequestError("the request's JSON is nested too deeply") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        message = f"the request is not valid JSON: {error}{_likely_cause(body)}"
        raise InvalidRequestError(message) from None
    if not isinstance(value, dict):
        raise InvalidRequestError("the request must be a JSON object")
    return value
