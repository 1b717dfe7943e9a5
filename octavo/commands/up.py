"""`octavo up`: both services on this machine, until a signal."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from common.config import Parser
from common.unknown_variables import told_of_unknown
from octavo.stack import config
from octavo.stack.command_lines import CommandLines
from octavo.stack.config import StackConfig
from octavo.stack.model_check import require_model
from octavo.stack.ports import require_free
from octavo.stack.report import Reporter
from octavo.stack.supervisor import Stack, StackAddresses

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: Sequence[str]) -> int:
    stack_config = config.from_namespace(make_parser().parse_args(argv))
    if told := told_of_unknown(config.known_variables(), os.environ):
        print(f"octavo up: warning: {told}", file=sys.stderr)
    require_free_ports(stack_config)
    require_model(stack_config.executor)
    return serve(stack_config, CommandLines(stack_config))


def serve(stack_config: StackConfig, command_lines: CommandLines) -> int:
    """Prints one line on stdout when the stack is ready; 0 after a signal ended it."""
    reporter = Reporter()
    stack = Stack(
        stack_config,
        reporter=reporter,
        command_lines=command_lines,
        on_ready=lambda addresses: print(ready_line(addresses, stack_config), flush=True),
    )

    def on_signal(number: int, frame: FrameType | None) -> None:
        stack.request_stop()

    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    try:
        stack.run()
    finally:
        reporter.close()
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="octavo up",
        description="Start executors and a scheduler on this machine and serve until a signal. "
        "Every flag is also an environment variable: --max-num-seqs is OCTAVO_MAX_NUM_SEQS.",
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    config.add_arguments(parser)
    return parser


def require_free_ports(stack: StackConfig) -> None:
    """ConfigError, naming the flag, for a configured port that somebody has."""
    scheduler, executor = stack.scheduler, stack.executor
    require_free(scheduler.host, scheduler.port, "--port")
    require_free(scheduler.host, scheduler.grpc_port, "--grpc-port")
    if executor.metrics_port:
        for index in range(stack.num_executors):
            require_free(executor.host, executor.metrics_port + index, "--metrics-port")


def ready_line(addresses: StackAddresses, stack: StackConfig) -> str:
    model = stack.scheduler.served_model_name or stack.executor.model
    return f"ready http=http://{addresses.http} grpc={addresses.grpc} model={model}"
