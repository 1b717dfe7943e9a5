"""The stack that tests of a whole Octavo share: starting one costs seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.up_process import UpProcess


@pytest.fixture(scope="session")
def up() -> Iterator[UpProcess]:
    with UpProcess() as process:
        yield process
