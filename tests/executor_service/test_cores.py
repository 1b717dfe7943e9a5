"""Compute threads that take all cores each stay on one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from executor_service.cores import keep_threads_apart, usable_cores

THREADS = """
import os
from executor_service.cores import keep_threads_apart, usable_cores
cores = usable_cores()
keep_threads_apart(len(cores), cores, os.environ)
import torch
torch.set_num_threads(len(cores))
torch.randn(1 << 22).exp_()
found = []
for thread in os.listdir("/proc/self/task"):
    found.append(tuple(sorted(os.sched_getaffinity(int(thread)))))
print(sorted({core for cores in found if len(cores) == 1 for core in cores}))
"""


@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core")
def test_each_thread_has_a_core_of_its_own() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", THREADS], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(usable_cores())


def test_places_are_the_cores_that_may_be_used() -> None:
    environ: dict[str, str] = {}
    keep_threads_apart(3, {7, 2, 4}, environ)
    places = environ["OMP_PLACES"]
    assert environ["OMP_PROC_BIND"] == "true"
    assert places in ("{2},{4},{7}", "{4},{7},{2}", "{7},{2},{4}")


@pytest.mark.parametrize(("num_threads", "cores"), [(1, {0}), (1, {0, 1}), (2, {0, 1, 2})])
def test_who_leaves_cores_to_others_is_not_bound(num_threads: int, cores: set[int]) -> None:
    environ: dict[str, str] = {}
    keep_threads_apart(num_threads, cores, environ)
    assert environ == {}


def test_the_environment_has_the_last_word() -> None:
    environ = {"OMP_PROC_BIND": "false"}
    keep_threads_apart(2, {0, 1}, environ)
    assert environ == {"OMP_PROC_BIND": "false"}
