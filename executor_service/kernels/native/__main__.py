"""`python -m executor_service.kernels.native`: compiles the kernels before a server has to.

Without a compiler it says so, and torch's kernels serve.
"""

from __future__ import annotations

import os
import sys

from executor_service.kernels.native import build


def main() -> None:
    try:
        path = build.library(
            build.chosen_level(os.environ), build.cache_directory(os.environ), os.environ
        )
    except build.BuildError as error:
        sys.stderr.write(f"native kernels were not compiled: {error}\n")
    else:
        sys.stderr.write(f"native kernels: {path}\n")


if __name__ == "__main__":
    main()
