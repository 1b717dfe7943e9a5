"""`python -m tests.support.fake_service_executor`."""

import sys

from tests.support.fake_service import run_executor

if __name__ == "__main__":
    run_executor(sys.argv[1:])
