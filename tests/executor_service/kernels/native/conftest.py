"""The kernels at every level that this machine can run, and that of AVX-512 by other means."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_service.kernels.native import build
from executor_service.kernels.native.library import Library
from tests.support.native_library import native_library

RUNNABLE = [level for level in build.LEVELS if level.needs <= build.cpu_flags()]
_AVX2 = next(level for level in build.LEVELS if level.name == "avx2")
_HEADERS = Path(__file__).parents[3] / "support" / "avx512_on_avx2"
if RUNNABLE[0] is _AVX2:
    RUNNABLE.append(
        build.Level(
            name="avx512-on-avx2",
            # Hardly optimized: 512 bits without registers for them take long to compile.
            flags=(
                *_AVX2.flags,
                "-Og",
                "-Wno-psabi",
                f"-I{_HEADERS}",
                "-D__AVX512F__=1",
                "-D__AVX512VNNI__=1",
            ),
            needs=_AVX2.needs,
        )
    )


@pytest.fixture(scope="session", params=RUNNABLE, ids=lambda level: level.name)
def native(request: pytest.FixtureRequest) -> Library:
    return native_library(request.param)


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    import torch

    torch.manual_seed(sum(request.node.name.encode()))
