"""`python -m scheduler_service`: parse the flags, run the role."""

from __future__ import annotations

import sys

from common.config import parse
from common.errors import ConfigError
from scheduler_service.app import run
from scheduler_service.config import SchedulerConfig


def main() -> int:
    try:
        config = parse(SchedulerConfig, sys.argv[1:], prog="scheduler_service")
    except ConfigError as error:
        sys.stderr.write(f"scheduler_service: {error}\n")
        return 2
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
