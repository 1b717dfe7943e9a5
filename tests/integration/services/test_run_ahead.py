"""At depth 2 the device never waits for a plan: the executor's own counters say so."""

from __future__ import annotations

from proto import executor_pb2, executor_pb2_grpc
from tests.support.http_client import HttpClient
from tests.support.services import Services


def _decode_steps(services: Services) -> tuple[int, int]:
    with services.executor_channel() as channel:
        stub = executor_pb2_grpc.ExecutorStub(channel)
        info = stub.GetInfo(executor_pb2.GetInfoRequest(), timeout=10)
    return info.num_decode_steps, info.num_decode_steps_ready


def test_steady_decode_steps_find_their_plan_decoded(
    services: Services, client: HttpClient
) -> None:
    steps_before, ready_before = _decode_steps(services)
    client.complete(prompt="Once the boat was", max_tokens=250, temperature=0, ignore_eos=True)
    steps, ready = _decode_steps(services)
    steps, ready = steps - steps_before, ready - ready_before
    assert steps >= 240
    assert ready >= 0.99 * steps, f"{ready} of {steps}"
