"""`python -m executor_service`."""

import logging
import os
import sys

from common.config import parse
from common.errors import ConfigError
from executor_service import app
from executor_service.config import ExecutorConfig


def main() -> int:
    try:
        config = parse(ExecutorConfig, sys.argv[1:], prog="executor_service")
    except ConfigError as error:
        sys.stderr.write(f"executor_service: {error}\n")
        return app.EXIT_CONFIG
    return app.run(config)


if __name__ == "__main__":
    exit_status = main()
    logging.shutdown()
    sys.stderr.flush()
    # Not sys.exit: taking down an interpreter that holds torch and a model walks every object of
    # theirs, a second or more of work for nothing.
    os._exit(exit_status)
