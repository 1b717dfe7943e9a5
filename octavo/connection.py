"""What both clients need to open a channel: options and credentials."""

from __future__ import annotations

from common.grpc_server import Link, Options, channel_options

DEFAULT_TIMEOUT_S = 30.0
"""Of every call but Generate, over all tries."""


def client_options() -> Options:
    """Quick to notice that a restarted server is back: gRPC's own pauses grow to two minutes."""
    return [
        *channel_options(Link.PUBLIC),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name the time that one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]


def call_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)
