"""Runs the tests of `triton/` in a process of their own.

The interpreter has to be chosen before triton is imported, and a kernel that reads outside a tensor
ends its process: neither is for the process of all other tests.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed"
)
def test_kernels_equal_their_references_under_the_interpreter(which: str) -> None:
    folder = Path(__file__).parent / "triton"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    # Triton 3.6 makes numbers of arrays of one element, of which numpy warns up to 2.3.
    warnings = ("-W", "ignore:Conversion of an array with ndim:DeprecationWarning")
    options = ("-q", "-p", "no:cacheprovider", *warnings, "-m", which)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
