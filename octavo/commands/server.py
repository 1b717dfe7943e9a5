"""Which server a command talks to: the one it is told, or one that it starts for itself."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.config import Parser
from common.errors import ConfigError
from octavo.stack import config
from octavo.stack.background import running_stack
from octavo.stack.config import StackConfig
from octavo.stack.report import Reporter
from octavo.sync_client import SyncClient


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--server",
        metavar="HOST:PORT",
        help="gRPC address of a running scheduler; left out: start one for the time being",
    )
    group.add_argument(
        "--api-key",
        default=os.environ.get("OCTAVO_API_KEY"),
        help="key that the server wants (also OCTAVO_API_KEY)",
    )
    group.add_argument(
        "--model", default="smollm2-135m", help="what to start, when no --server is given"
    )


@contextmanager
def connected_client(namespace: argparse.Namespace) -> Iterator[SyncClient]:
    if namespace.server:
        if "://" in namespace.server:
            raise ConfigError(
                f"--server: {namespace.server!r} has a scheme; give the gRPC address alone,"
                " host:port, e.g. 127.0.0.1:50051"
            )
        with SyncClient(namespace.server, namespace.api_key) as client:
            yield client
        return
    with own_server(["--model", namespace.model]) as client:
        yield client


@contextmanager
def own_server(flags: Sequence[str]) -> Iterator[SyncClient]:
    """A stack on automatic ports with `octavo up`'s flags, for as long as the block runs."""
    reporter = Reporter()
    try:
        with (
            running_stack(own_server_config(flags), reporter) as addresses,
            SyncClient(addresses.grpc) as client,
        ):
            yield client
    finally:
        reporter.close()


def own_server_config(flags: Sequence[str]) -> StackConfig:
    """Not even the environment may move it off automatic ports: a served stack may have those."""
    parser = Parser(conflict_handler="resolve", allow_abbrev=False)
    config.add_arguments(parser)
    fixed = ["--host=127.0.0.1", "--port=0", "--grpc-port=0", "--log-level=warning"]
    # One person talks to it: a pool for hundreds would only take longer to clear.
    fixed.append("--max-num-seqs=4")
    environ = {name: value for name, value in os.environ.items() if name != "OCTAVO_API_KEY"}
    return config.from_namespace(parser.parse_args([*fixed, *flags]), environ)
