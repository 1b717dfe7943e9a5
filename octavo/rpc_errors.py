"""From the status of a failed call to the exception a caller can act on."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from common.errors import (
    AbortedError,
    DeadlineError,
    InvalidRequestError,
    NotFoundError,
    OctavoError,
    QueueFullError,
    ServerError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
)
from common.protocol import FIELD_METADATA, RETRY_AFTER_METADATA

_ERRORS: dict[grpc.StatusCode, type[OctavoError]] = {
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.CANCELLED: AbortedError,
}


def to_octavo_error(
    code: grpc.StatusCode,
    details: str | None,
    trailing_metadata: Iterable[tuple[str, str | bytes]] | None,
) -> OctavoError:
    """An invalid request's error carries the field; a full queue's carries when to come back."""
    message = details or code.name
    metadata = dict(trailing_metadata or ())
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        field = metadata.get(FIELD_METADATA)
        return InvalidRequestError(message, field=None if field is None else str(field))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if RETRY_AFTER_METADATA not in metadata:
            # Not the queue: gRPC itself refuses a message beyond its cap with this status.
            return TooLargeError(message)
        return QueueFullError(message, retry_after_s=int(metadata[RETRY_AFTER_METADATA]) / 1000)
    if code in _ERRORS:
        return _ERRORS[code](message)
    return ServerError(f"{code.name}: {message}")
