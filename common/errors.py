"""The whole exception tree. Expected outcomes are return values; these are the others.

`common/grpc_server.py` and the HTTP app each hold one table from these classes to statuses.
"""

from __future__ import annotations


class OctavoError(Exception):
    """Base of every error Octavo raises on purpose."""


class ConfigError(OctavoError):
    """A flag, its environment variable or a file it names is wrong; the message names the flag."""


class InvalidRequestError(OctavoError):
    """The client's fault. `field` is the request field at fault, as the client wrote it."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnauthenticatedError(OctavoError):
    """No API key, or a wrong one."""


class NotFoundError(OctavoError):
    """The named model or request is not served here."""


class TooLargeError(OctavoError):
    """A message or body is beyond the stated limit."""


class QueueFullError(OctavoError):
    """No room for another request now. `retry_after_s` is a hint."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(OctavoError):
    """No executor is ready, or the server is draining."""


class DeadlineError(OctavoError):
    """The request's deadline passed before it ended."""


class AbortedError(OctavoError):
    """The request was aborted by somebody else than the one who waits for it."""


class ServerError(OctavoError):
    """The server failed a call for no fault of the caller, or broke the protocol."""


class ExecutorLostError(OctavoError):
    """The executor is gone: stream error, ping timeout or watchdog."""


class ResyncError(OctavoError):
    """A message on the step stream is out of order or of another epoch: reopen it."""


class OwnershipError(OctavoError):
    """Another scheduler owns the executor, or the offered epoch is too low."""


class ModelError(OctavoError):
    """The model cannot be loaded or is not supported; the message says what was found."""


class InvariantError(OctavoError):
    """A bug of ours: state that must be impossible."""
