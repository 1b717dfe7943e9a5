"""Configured ports are tried before anything slow begins."""

from __future__ import annotations

import socket

from common.errors import ConfigError


def require_free(host: str, port: int, flag: str) -> None:
    """ConfigError naming `flag` if nobody could listen there now. Port 0 is always free.

    Another process may still take the port before the service binds it; then that service fails
    with the same advice, only later.
    """
    if port == 0:
        return
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host: {host!r} is no address of this machine: {error}") from error
    for family, kind, protocol, _, address in places:
        with socket.socket(family, kind, protocol) as probe:
            # As servers do, so that connections of a server just gone do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise ConfigError(
                    f"{flag}: port {port} on {host} cannot be had ({error.strerror}); "
                    f"choose another, or 0 for a free one"
                ) from error
