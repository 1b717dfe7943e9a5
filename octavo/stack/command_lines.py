"""The command lines and the environment that the children of a stack are started with."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence

from common import config
from executor_service.config import ExecutorConfig
from octavo.stack.config import StackConfig
from scheduler_service.config import SchedulerConfig


class CommandLines:
    """Says everything in flags, so that a child's own environment has no say."""

    def __init__(
        self,
        stack: StackConfig,
        *,
        executor_module: str = "executor_service",
        scheduler_module: str = "scheduler_service",
    ) -> None:
        self._stack = stack
        self._executor_module = executor_module
        self._scheduler_module = scheduler_module

    def executor(self, index: int, port: int) -> list[str]:
        """Executor `index` on `port`: 0 at its first start, then the one it got."""
        metrics_port = self._stack.executor.metrics_port
        if metrics_port:
            metrics_port += index  # one each, from the given port on
        mine = dataclasses.replace(self._stack.executor, port=port, metrics_port=metrics_port)
        flags = config.to_argv(mine, ExecutorConfig)
        return [sys.executable, "-m", self._executor_module, *flags]

    def scheduler(self, executors: Sequence[str], port: int, grpc_port: int) -> list[str]:
        mine = dataclasses.replace(
            self._stack.scheduler, executors=tuple(executors), port=port, grpc_port=grpc_port
        )
        flags = config.to_argv(mine, SchedulerConfig)
        return [sys.executable, "-m", self._scheduler_module, *flags]

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The children's environment: ours, but for what their flags say; where our code is; and
        secrets, which no flag may show."""
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [root, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
        told = config.variables_of(ExecutorConfig) | config.variables_of(SchedulerConfig)
        others = {name: value for name, value in environ.items() if name not in told}
        secrets = config.secret_environ(self._stack.scheduler, SchedulerConfig)
        # Safe path: a folder named `proto` where the user stands must not shadow ours.
        ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
        return {**others, **secrets, **ours}
