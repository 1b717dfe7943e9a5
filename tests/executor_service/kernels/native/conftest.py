"""The kernels at every level that this machine can run."""

from __future__ import annotations

import pytest

from executor_service.kernels.native import build, library
from executor_service.kernels.native.library import Library

RUNNABLE = [level for level in build.LEVELS if level.needs <= build.cpu_flags()]


@pytest.fixture(scope="session", params=RUNNABLE, ids=lambda level: level.name)
def native(request: pytest.FixtureRequest) -> Library:
    try:
        return library.open_level(request.param)
    except build.BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    import torch

    torch.manual_seed(sum(request.node.name.encode()))
