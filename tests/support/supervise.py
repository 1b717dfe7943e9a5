"""Runs the scheduler's supervisor over `fake_role` processes, in a process of its own.

`python -m tests.support.supervise BEHAVIOUR DIRECTORY flags...`
"""

from __future__ import annotations

import sys

from common import log
from common.config import parse
from common.errors import ConfigError
from common.process import ProcessStatus, die_with_parent
from scheduler_service.app.supervisor import Supervisor
from scheduler_service.config import SchedulerConfig


def main() -> int:
    behaviour, directory, *flags = sys.argv[1:]
    config = parse(SchedulerConfig, flags, prog="supervise")
    log.configure("supervisor", "info", "text")
    status = ProcessStatus(config.status_fd)
    die_with_parent(config.parent_fd)
    command = (sys.executable, "-m", "tests.support.fake_role", behaviour, directory)
    try:
        return Supervisor(config, status, command=command).run()
    except ConfigError as error:
        status.failed(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
