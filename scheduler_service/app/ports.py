"""The service's public ports: found out before anything else is started.

A port in use has to be said at once and with its flag, not after a model was loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator

from common.errors import ConfigError
from scheduler_service.config import SchedulerConfig


@contextlib.contextmanager
def settled_ports(config: SchedulerConfig) -> Iterator[SchedulerConfig]:
    """The config for API workers; ConfigError naming the flag if a port cannot be had.

    One worker binds 0 itself. Several have to agree on the number and share the port, so it is
    chosen here and held by a socket that never listens, so that no stranger gets it meanwhile.
    """
    for flag, port in (("--port", config.port), ("--grpc-port", config.grpc_port)):
        if port:
            _check_free(config.host, port, flag)
    with contextlib.ExitStack() as held:
        if config.api_workers > 1:
            config = dataclasses.replace(
                config,
                port=_hold(held, config.host, config.port),
                grpc_port=_hold(held, config.host, config.grpc_port),
            )
        yield config


def _check_free(host: str, port: int, flag: str) -> None:
    try:
        with _socket(host) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        raise ConfigError(
            f"{flag}: cannot listen on {host} port {port}: {error.strerror or error};"
            " choose another (0: any free one)"
        ) from error


def _hold(held: contextlib.ExitStack, host: str, port: int) -> int:
    holder = held.enter_context(_socket(host))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((host, port))
    return int(holder.getsockname()[1])


def _socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM)
