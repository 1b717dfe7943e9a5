"""No kernel reads or writes beyond what it was given, or does what C leaves undefined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor_service.kernels.native import build
from tests.support.native_library import native_library

ROOT = Path(__file__).parents[4]
LEVELS = [level.name for level in build.LEVELS if level.needs <= build.usable_flags()]
KERNELS = "tests/executor_service/kernels/native"
RUNNER = "tests/executor_service/runner"
CASES = {
    "plans": [f"{RUNNER}/test_plan_fuzz.py"],
    "attention": [f"{KERNELS}/test_attention.py", f"{KERNELS}/test_shared_prefixes.py"],
    "linears": [f"{KERNELS}/test_linears.py"],
    "draws": [f"{RUNNER}/test_native_sampler.py"],
}


def preloaded() -> str:
    """The address sanitizer's library. Skips the test where the compiler brings none."""
    native_library()
    command = [*build.find_compiler(os.environ).command, "-print-file-name=libasan.so"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("the compiler has no address sanitizer")
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("level", LEVELS)
def test_every_access_is_within_range(level: str, case: str) -> None:
    asan = {"LD_PRELOAD": preloaded(), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        # Nothing is captured: a report ends the process.
        [sys.executable, "-m", "tests.support.sanitized", level, "-q", "-x", "-s", *CASES[case]],
        cwd=ROOT,
        env=os.environ | asan | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
