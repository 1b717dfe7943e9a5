"""Asks a scheduler whether it is ready."""

from __future__ import annotations

import http.client

_TIMEOUT_S = 2.0


def is_ready(address: str) -> bool:
    """Whether GET /health/ready at host:port answers 200."""
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
