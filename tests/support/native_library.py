"""The compiled kernels for tests: absent without a compiler, a fault where they do not compile."""

from __future__ import annotations

import os

import pytest

from executor_service.kernels.native import build, library
from executor_service.kernels.native.library import Library


def native_library(level: build.Level | None = None) -> Library:
    """For `level`, or the best one. Skips the test without a compiler."""
    try:
        build.find_compiler(os.environ)
    except build.BuildError as error:
        pytest.skip(str(error))
    return library.open_level(level or build.best_level(build.usable_flags()))
