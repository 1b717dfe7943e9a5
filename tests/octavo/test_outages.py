"""A server that is away for a while: clients say so at once, and are back soon after it.

C numbers name acceptance cases.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from common import errors
from common.grpc_server import GrpcServer, Link, Options, Service
from octavo import Client
from octavo import client as client_module
from octavo.connection import client_options
from octavo.retries import RetryPolicy
from proto import inference_pb2_grpc
from tests.support.fake_inference import FakeInference

_MAX_BACKOFF_S = 5.0
_FAST_FAILURE_S = 5.0
"""A first call gives up after about one second; the rest is for a busy machine."""


@pytest.fixture(autouse=True)
def own_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of one process would share one connection; those of the field do not."""

    def options() -> Options:
        return [*client_options(), ("grpc.use_local_subchannel_pool", 1)]

    monkeypatch.setattr(client_module, "client_options", options)


async def _start(fake: FakeInference, port: int = 0) -> GrpcServer:
    register = partial(inference_pb2_grpc.add_InferenceServicer_to_server, fake)
    server = GrpcServer([Service("x", register)], host="127.0.0.1", port=port, link=Link.PUBLIC)
    await server.start()
    return server


async def _call_until_answered(client: Client) -> tuple[float, list[float]]:
    """When it was answered, and how long each call before that took to fail."""
    failures: list[float] = []
    while True:
        began = time.monotonic()
        try:
            await client.server_info()
            return time.monotonic(), failures
        except errors.UnavailableError:
            failures.append(time.monotonic() - began)


@pytest.mark.parametrize(
    ("num_clients", "outage_s"),
    [(10, 4.0), pytest.param(100, 30.0, marks=pytest.mark.slow)],
)
async def test_c82_clients_of_a_server_that_comes_back_are_answered_within_six_seconds(
    num_clients: int, outage_s: float
) -> None:
    server = await _start(FakeInference())
    port = int(server.address.rpartition(":")[2])
    clients = [Client(server.address) for _ in range(num_clients)]
    await asyncio.gather(*(client.server_info() for client in clients))
    await server.stop(0)
    calling = [asyncio.create_task(_call_until_answered(client)) for client in clients]
    await asyncio.sleep(outage_s)
    assert not any(task.done() for task in calling)
    server = await _start(FakeInference(), port)
    back = time.monotonic()
    async with asyncio.timeout(30):
        answered = await asyncio.gather(*calling)
    assert max(at for at, _ in answered) - back <= _MAX_BACKOFF_S + 1.0
    failures = [took_s for _, failed in answered for took_s in failed]
    assert len(failures) >= num_clients
    assert max(failures) < _FAST_FAILURE_S
    await asyncio.gather(*(client.close() for client in clients))
    await server.stop(0)


def test_c82_no_wait_of_a_client_is_longer_than_five_seconds() -> None:
    options = dict(client_options())
    jitter = 1.2  # gRPC's own
    channel_s = options["grpc.max_reconnect_backoff_ms"] / 1000 * jitter
    assert RetryPolicy().max_delay_s <= _MAX_BACKOFF_S
    assert channel_s <= _MAX_BACKOFF_S
    # A try that just misses the channel's next attempt waits once more.
    assert channel_s + RetryPolicy().max_delay_s <= _MAX_BACKOFF_S + 1.0
