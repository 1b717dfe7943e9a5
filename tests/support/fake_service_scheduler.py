"""`python -m tests.support.fake_service_scheduler`."""

import sys

from tests.support.fake_service import run_scheduler

if __name__ == "__main__":
    run_scheduler(sys.argv[1:])
