"""One pair of services on the real model, shared by the tests here that leave it whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.http_client import HttpClient
from tests.support.services import Services

NUM_BLOCKS = 600
MAX_NUM_SEQS = 8


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    limits = ("--max-num-seqs=8", "--max-num-batched-tokens=64")
    with Services.start(
        executor=(f"--num-blocks={NUM_BLOCKS}", *limits),
        scheduler=(*limits, "--check-invariants"),
    ) as started:
        yield started


@pytest.fixture
def client(services: Services) -> Iterator[HttpClient]:
    with HttpClient(services.http) as connected:
        yield connected
