"""At depth 2 the device never waits for a plan: the executor's own counters say so."""

from __future__ import annotations

import grpc

from common.grpc_server import Link, channel_options
from proto import executor_pb2, executor_pb2_grpc
from tests.support.http_client import HttpClient
from tests.support.services import Services
from tests.support.up_process import UpProcess


def _decode_steps(address: str) -> tuple[int, int]:
    """Steps of decodes alone that followed another step, and those that found their plan."""
    with grpc.insecure_channel(address, options=channel_options(Link.INTERNAL)) as channel:
        stub = executor_pb2_grpc.ExecutorStub(channel)
        info = stub.GetInfo(executor_pb2.GetInfoRequest(), timeout=10)
    return info.num_decode_steps, info.num_decode_steps_ready


def _share_ready(client: HttpClient, address: str, *, max_tokens: int) -> float:
    steps_before, ready_before = _decode_steps(address)
    client.complete(
        prompt="Once the boat was", max_tokens=max_tokens, temperature=0, ignore_eos=True
    )
    steps, ready = _decode_steps(address)
    assert steps - steps_before >= max_tokens - 5
    return (ready - ready_before) / (steps - steps_before)


def test_steady_decode_steps_find_their_plan_decoded(up: UpProcess, model: HttpClient) -> None:
    (address,) = up.executor_addresses()
    assert _share_ready(model, address, max_tokens=120) >= 0.99


def test_without_run_ahead_they_do_not() -> None:
    """So that the counter above can fail."""
    with (
        Services.shadow(scheduler=["--run-ahead-depth=1"], executor=["--latency-ms=2"]) as services,
        HttpClient(services.http) as client,
    ):
        address = services.executors[0].addresses["grpc"]
        assert _share_ready(client, address, max_tokens=60) < 0.5
