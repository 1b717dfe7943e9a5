"""The kernels at every level this machine can run, and AVX-512 and AMX by other means."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_service.kernels.native import build
from executor_service.kernels.native.library import Library
from tests.support.native_library import native_library

RUNNABLE = [level for level in build.LEVELS if level.needs <= build.usable_flags()]
_SUPPORT = Path(__file__).parents[3] / "support"
_AMX = ("-D__AMX_INT8__=1", "-D__AMX_BF16__=1")


def _emulated(name: str, by: str, headers: str, *flags: str) -> build.Level:
    """A level whose instructions the headers do by those of the level `by`."""
    base = next(level for level in RUNNABLE if level.name == by)
    # Hardly optimized: registers that the machine lacks take long to compile.
    own = ("-Og", "-Wno-psabi", f"-I{_SUPPORT / headers}", *flags)
    return build.Level(name=name, flags=(*base.flags, *own), needs=base.needs)


if RUNNABLE[0].name == "avx2":
    two_halves = ("-D__AVX512F__=1", "-D__AVX512VNNI__=1")
    RUNNABLE.append(_emulated("avx512-on-avx2", "avx2", "avx512_on_avx2", *two_halves))
elif RUNNABLE[0].name == "avx512":
    RUNNABLE.append(_emulated("amx-in-memory", "avx512", "amx_in_memory", *_AMX))


@pytest.fixture(scope="session", params=RUNNABLE, ids=lambda level: level.name)
def native(request: pytest.FixtureRequest) -> Library:
    return native_library(request.param)


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    import torch

    torch.manual_seed(sum(request.node.name.encode()))
