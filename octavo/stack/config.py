"""One set of flags for both services.

A flag that both services have is given once and told to both. Where the tokens of a step are left
out, executors keep memory for the scheduler's.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

from common import config
from common.config import option
from common.errors import ConfigError
from executor_service.config import OTHER_VARIABLES, ExecutorConfig
from scheduler_service.config import SchedulerConfig

INTERNAL_FIELDS = ("executors", "role", "engine_socket", "status_fd", "parent_fd")
"""Flags of the services that the stack itself decides."""
_INTERNAL = frozenset(f"OCTAVO_{name.upper()}" for name in INTERNAL_FIELDS)

DEFAULT_SHUTDOWN_TIMEOUT_S = 2.0
"""Unless a flag says otherwise: a person who pressed Ctrl-C does not wait as long as a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFlags:
    """The stack's own flags beside those of the services."""

    num_executors: int = option(1, help="executor processes, each with its own weights and KV pool")

    def __post_init__(self) -> None:
        if self.num_executors < 1:
            raise ConfigError(f"--num-executors must be at least 1, not {self.num_executors}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """What to start: checked, with every default filled in."""

    num_executors: int
    executor: ExecutorConfig
    scheduler: SchedulerConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every flag of the stack; `parser` needs conflict_handler="resolve"."""
    executor = parser.add_argument_group("executors")
    scheduler = parser.add_argument_group("scheduler, and what both services share")
    config.add_arguments(parser, StackFlags)
    config.add_arguments(executor, ExecutorConfig)
    config.add_arguments(scheduler, SchedulerConfig)
    for action in parser._actions:
        if action.dest in INTERNAL_FIELDS:
            action.help = argparse.SUPPRESS
        elif action.dest == "shutdown_timeout":
            action.help = (
                f"seconds that running requests get to end after a signal "
                f"(default {DEFAULT_SHUTDOWN_TIMEOUT_S:g})"
            )


def from_namespace(
    namespace: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> StackConfig:
    """Checks all flags at once, so that a wrong one is told before anything starts."""
    for name in INTERNAL_FIELDS:
        if hasattr(namespace, name):
            raise ConfigError(f"--{name.replace('_', '-')} is set by octavo up itself")
    flags = config.from_namespace(StackFlags, namespace, environ)
    variables = {"OCTAVO_SHUTDOWN_TIMEOUT": str(DEFAULT_SHUTDOWN_TIMEOUT_S), **environ}
    variables = {name: value for name, value in variables.items() if name not in _INTERNAL}
    executor = config.from_namespace(ExecutorConfig, namespace, variables)
    scheduler = config.from_namespace(SchedulerConfig, namespace, variables)
    return StackConfig(
        num_executors=flags.num_executors,
        executor=dataclasses.replace(
            executor,
            host="127.0.0.1",
            port=0,
            threads=executor.threads or max(1, num_cores() // flags.num_executors),
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
        ),
        scheduler=scheduler,
    )


def known_variables() -> frozenset[str]:
    """Every OCTAVO_* variable that says something to `octavo up`."""
    flags = map(config.variables_of, (StackFlags, ExecutorConfig, SchedulerConfig))
    return OTHER_VARIABLES.union(*flags) - _INTERNAL


def num_cores() -> int:
    """The cores this process may use, which its children inherit."""
    return len(os.sched_getaffinity(0))
