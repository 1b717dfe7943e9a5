"""Where the tests here run: on shadow KV, which checks every read, or on the real model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.http_client import HttpClient
from tests.support.services import Services
from tests.support.up_process import UpProcess

NUM_BLOCKS = 600
_LIMITS = ("--max-num-seqs=128", "--max-num-batched-tokens=512")


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Both services as processes; tests leave them as they found them."""
    with Services.shadow(
        executor=(f"--num-blocks={NUM_BLOCKS}", "--latency-ms=2", *_LIMITS),
        scheduler=(*_LIMITS, "--check-invariants"),
    ) as started:
        yield started


@pytest.fixture
def client(services: Services) -> Iterator[HttpClient]:
    with HttpClient(services.http) as connected:
        yield connected


@pytest.fixture
def model(up: UpProcess) -> Iterator[HttpClient]:
    """A client of the whole stack on the real model."""
    with HttpClient(up.http) as connected:
        yield connected
