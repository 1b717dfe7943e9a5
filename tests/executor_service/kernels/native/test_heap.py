"""Native code works in the memory it is given, whatever the C library's own functions do."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from executor_service.kernels.native import build
from tests.support.native_library import native_library

_ROOT = Path(__file__).parents[4]
_COUNTER = _ROOT / "tests" / "support" / "counted_mallocs.c"
_SORT = """
#include "sort.h"
static int is_less(const int32_t *a, const int32_t *b) { return *a < *b; }
DEFINE_SORT(sort_rising, int32_t, is_less)
void sort(int32_t *all, int32_t count) { sort_rising(all, count); }
"""


def _shared(source: Path, target: Path) -> Path:
    compiler = build.find_compiler(os.environ)
    command = [*compiler.command, "-O2", "-fPIC", "-shared", f"-I{build.SOURCES}"]
    subprocess.run([*command, str(source), "-o", str(target)], check=True)
    return target


def test_a_step_and_its_draws_ask_the_heap_for_nothing(tmp_path: Path) -> None:
    native_library()
    counter = _shared(_COUNTER, tmp_path / "counter.so")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.counted_mallocs"],
        cwd=_ROOT,
        env=os.environ | {"LD_PRELOAD": str(counter), "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(done.stdout) == {"oct_step": 0, "oct_sample": 0, "malloc": 1}


def test_any_numbers_are_sorted(tmp_path: Path) -> None:
    native_library()
    (tmp_path / "sort.c").write_text(_SORT)
    sort = ctypes.CDLL(str(_shared(tmp_path / "sort.c", tmp_path / "sort.so"))).sort
    rng = random.Random(1)
    for count in (*range(70), 1000):
        numbers = [rng.randrange(count) for _ in range(count)]
        for given in (numbers, sorted(numbers), sorted(numbers, reverse=True)):
            found = (ctypes.c_int32 * count)(*given)
            sort(found, count)
            assert list(found) == sorted(numbers)
