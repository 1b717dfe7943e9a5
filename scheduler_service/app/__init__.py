"""Composition root: the one place that builds the service's processes from a config.

The service is a supervisor, one step loop and `--api-workers` API workers, each a process of its
own: a step loop that shares a process with text handling would wait for it, 8 ms at the median.
"""

from __future__ import annotations

import logging
import os

from common import log as logs
from common.config import variables_of
from common.errors import ConfigError, OctavoError
from common.process import ProcessStatus, die_with_parent
from common.unknown_variables import told_of_misspelt
from scheduler_service.config import SchedulerConfig

log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_CONFIG = 2


def run(config: SchedulerConfig) -> int:
    """Runs the role until it is told to stop; returns the process's exit status."""
    service = "scheduler" if config.role == "supervisor" else f"scheduler-{config.role}"
    logs.configure(service, config.log_level, config.log_format)
    # With a parent, that one has told already.
    known = variables_of(SchedulerConfig)
    if config.parent_fd is None and (told := told_of_misspelt(known, os.environ)):
        log.warning("%s", told)
    status = ProcessStatus(config.status_fd)
    die_with_parent(config.parent_fd, grace_s=config.shutdown_timeout + 5.0)
    try:
        return _run_role(config, status)
    except OctavoError as error:
        log.error("%s", error)
        status.failed(str(error))
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


def _run_role(config: SchedulerConfig, status: ProcessStatus) -> int:
    # Each role imports its own world: the supervisor starts and dies fast without gRPC and HTTP,
    # and the step loop holds nothing that API workers need.
    if config.role == "engine":
        from scheduler_service.app.roles import run_engine

        return run_engine(config, status)
    if config.role == "api":
        from scheduler_service.app.roles import run_api

        return run_api(config, status)
    from scheduler_service.app.supervisor import Supervisor

    return Supervisor(config, status).run()
