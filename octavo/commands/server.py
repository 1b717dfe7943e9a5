"""Which server a command talks to: the one it is told, or one that it starts for itself."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.config import Parser
from common.errors import ConfigError, UnauthenticatedError, UnavailableError
from octavo.stack import config
from octavo.stack.background import running_stack
from octavo.stack.config import StackConfig
from octavo.stack.model_check import require_model
from octavo.stack.report import Reporter
from octavo.sync_client import SyncClient
from octavo.types import GenerateOptions


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
        "--model",
        help="what to start (also OCTAVO_MODEL, else smollm2-135m); with --server: the name to "
        "ask for, if any",
    )


@contextmanager
def connected_client(namespace: argparse.Namespace) -> Iterator[SyncClient]:
    if namespace.server:
        _check_address(namespace.server)
        with SyncClient(namespace.server, namespace.api_key) as client, _flags_named(namespace):
            yield client
        return
    with own_server(["--model", namespace.model] if namespace.model else []) as client:
        yield client


def server_options(namespace: argparse.Namespace) -> GenerateOptions:
    """What the flags of the server say about each request. What is started has one model alone,
    which may be called otherwise than the file that it is read from."""
    if namespace.server and namespace.model:
        return {"model": namespace.model}
    return {}


def _check_address(server: str) -> None:
    wrong = None
    if "://" in server:
        wrong = "has a scheme; give the gRPC address alone"
    elif not server.startswith("unix:") and not server.rpartition(":")[2].isdigit():
        wrong = "has no port; give the gRPC address"
    if wrong:
        raise ConfigError(f"--server: {server!r} {wrong}, host:port, e.g. 127.0.0.1:50051")


@contextmanager
def _flags_named(namespace: argparse.Namespace) -> Iterator[None]:
    """What fails because of a flag says which, and what it should be."""
    try:
        yield
    except UnauthenticatedError as error:
        raise UnauthenticatedError(
            f"--server {namespace.server} wants another key: --api-key, or OCTAVO_API_KEY"
        ) from error
    except UnavailableError as error:
        if "failed to connect" not in str(error):
            raise
        raise UnavailableError(
            f"--server {namespace.server}: nothing answers gRPC there; is the server running, and"
            f" is this its --grpc-port? ({error})"
        ) from error


@contextmanager
def own_server(flags: Sequence[str]) -> Iterator[SyncClient]:
    """A stack on automatic ports with `octavo up`'s flags, for as long as the block runs."""
    stack_config = own_server_config(flags)
    require_model(stack_config.executor)
    reporter = Reporter()
    try:
        with (
            running_stack(stack_config, reporter) as addresses,
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
