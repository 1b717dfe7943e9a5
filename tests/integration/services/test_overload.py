"""A full queue, a deadline that passes in it, and SIGTERM: on services that serve one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from common.grpc_server import Link, channel_options
from common.protocol import RETRY_AFTER_METADATA
from proto import inference_pb2 as pb
from proto import inference_pb2_grpc
from tests.integration.services.pool import num_computed_tokens
from tests.support.http_client import HttpClient
from tests.support.processes import eventually
from tests.support.services import Services

_PROMPT = list(range(500, 517))
_NUM_TOKENS = 120
_LONG: dict[str, Any] = {
    "prompt": _PROMPT,
    "max_tokens": _NUM_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture
def narrow() -> Iterator[Services]:
    """One sequence runs, two wait."""
    limits = ("--max-num-seqs=1", "--max-num-batched-tokens=64")
    with Services.shadow(
        executor=("--latency-ms=20", *limits), scheduler=(*limits, "--max-num-waiting=2")
    ) as started:
        yield started


def _load(services: Services) -> tuple[int, int]:
    """Sequences running and waiting."""
    with grpc.insecure_channel(services.grpc, options=channel_options(Link.PUBLIC)) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        info = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)
    return info.num_requests_running, info.num_requests_waiting


def _refusal(services: Services, request: pb.GenerateRequest) -> Any:
    """The failed call, with its code and trailing metadata."""
    with grpc.insecure_channel(services.grpc, options=channel_options(Link.PUBLIC)) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=30)
        with pytest.raises(grpc.RpcError):
            list(call)
        call.trailing_metadata()
        return call


@pytest.fixture
def in_background() -> Iterator[Callable[..., Any]]:
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit


def test_overload_deadlines_and_sigterm(
    narrow: Services, in_background: Callable[..., Any]
) -> None:
    """In one test, since they share services that take seconds to start."""
    with HttpClient(narrow.http) as client:
        _a_full_queue_says_when_to_come_back(narrow, client, in_background)
        _a_deadline_in_the_queue_costs_no_device_work(narrow, client, in_background)
        _sigterm_lets_the_running_stream_end(narrow, client)


def _a_full_queue_says_when_to_come_back(
    services: Services, client: HttpClient, in_background: Callable[..., Any]
) -> None:
    # The queue is full for as long as the first one runs: five seconds, as machines do stand still.
    longer = _LONG | {"max_tokens": 2 * _NUM_TOKENS}
    accepted = [in_background(client.token_ids, **longer)]
    assert eventually(lambda: _load(services) == (1, 0))  # of three at once all would queue
    accepted += [in_background(client.token_ids, **longer) for _ in range(2)]
    assert eventually(lambda: _load(services) == (1, 2))
    response = client.post("/v1/completions", prompt="Hi", max_tokens=4)
    assert response.status_code == 429, response.text
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"]
    call = _refusal(services, pb.GenerateRequest(text="Hi"))
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(call.trailing_metadata())[RETRY_AFTER_METADATA]) > 0
    first, *others = (future.result(timeout=110) for future in accepted)
    assert len(first) == 2 * _NUM_TOKENS
    assert others == [first, first]


def _a_deadline_in_the_queue_costs_no_device_work(
    services: Services, client: HttpClient, in_background: Callable[..., Any]
) -> None:
    before = num_computed_tokens(client)
    running = in_background(client.token_ids, **_LONG, cache_salt="deadline")
    assert eventually(lambda: _load(services) == (1, 0))
    late = pb.GenerateRequest(token_ids=pb.TokenIds(ids=range(400, 700)), timeout_ms=300)
    assert _refusal(services, late).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    response = client.post("/v1/completions", prompt=list(range(400, 700)), timeout=0.3)
    assert response.status_code == 504, response.text
    assert len(running.result(timeout=110)) == _NUM_TOKENS
    # The last token is handed out, never computed.
    assert num_computed_tokens(client) - before == len(_PROMPT) + _NUM_TOKENS - 1


def _sigterm_lets_the_running_stream_end(services: Services, client: HttpClient) -> None:
    stream = client.stream(**_LONG, return_token_ids=True)
    events = [next(stream)]
    services.scheduler.process.terminate()
    with HttpClient(services.http) as late:
        assert eventually(late.refuses)
    events += stream
    token_ids = [t for event in events for c in event["choices"] for t in c["token_ids"]]
    assert len(token_ids) == _NUM_TOKENS
    assert services.scheduler.process.wait(30) == 0
    assert services.executors[0].process.poll() is None
