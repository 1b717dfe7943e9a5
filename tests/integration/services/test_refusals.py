"""A request that cannot be served is told why, over HTTP and gRPC, and harms nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from common.grpc_server import Link, channel_options
from proto import inference_pb2 as pb
from proto import inference_pb2_grpc
from tests.support.http_client import HttpClient
from tests.support.services import Services

_INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "empty-prompt": ({"prompt": []}, "prompt"),
    "token-outside-the-vocabulary": ({"prompt": [1, 1000]}, "prompt"),
    "negative-token": ({"prompt": [1, -3]}, "prompt"),
    "negative-temperature": ({"temperature": -0.1}, "temperature"),
    "temperature-not-a-number": ({"temperature": "warm"}, "temperature"),
    "top-p-zero": ({"top_p": 0}, "top_p"),
    "top-p-above-one": ({"top_p": 1.5}, "top_p"),
    "no-tokens": ({"max_tokens": 0}, "max_tokens"),
    "more-than-the-context": ({"max_tokens": 1_000_000}, "max_tokens"),
    "no-choices": ({"n": 0}, "n"),
    "empty-stop": ({"stop": [""]}, "stop"),
    "stop-token-outside": ({"stop_token_ids": [1000]}, "stop_token_ids"),
    "bias-outside": ({"logit_bias": {"1000": 1.0}}, "logit_bias"),
    "penalty-too-large": ({"presence_penalty": 3}, "presence_penalty"),
}


@pytest.fixture
def bystander(client: HttpClient) -> Iterator[Callable[[], None]]:
    """A running greedy stream; calling it checks that it ended as it does alone."""
    body = {
        "prompt": list(range(300, 400)),
        "max_tokens": 400,
        "temperature": 0,
        "ignore_eos": True,
    }
    alone = client.token_ids(**body)
    with ThreadPoolExecutor(1) as threads:
        running: Future[list[int]] = threads.submit(client.token_ids, **body)

        def check() -> None:
            assert running.result(timeout=110) == alone

        yield check


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", _INVALID)
def test_http_names_the_field(client: HttpClient, name: str, stream: bool) -> None:  # noqa: FBT001
    wrong, field = _INVALID[name]
    body = {"prompt": "Hello", "max_tokens": 4} | wrong
    response = client.post("/v1/completions", stream=stream, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] is not None and error["param"].split(".")[0] == field
    assert error["message"]


def test_http_answers_what_is_not_a_request(client: HttpClient) -> None:
    for content in (b"", b"{", b"[1]", b"\xff\xfe"):
        response = client.post_bytes("/v1/completions", content)
        assert response.status_code == 400, content
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert client.post("/v1/completions", prompt="x", model="another").status_code == 404
    assert client.post("/v1/nothing").status_code == 404


def test_invalid_requests_leave_a_running_stream_alone(
    client: HttpClient, bystander: Callable[[], None]
) -> None:
    for wrong, _ in _INVALID.values():
        body = {"prompt": "Hello", "max_tokens": 4} | wrong
        assert client.post("/v1/completions", **body).status_code == 400
    bystander()


_WRONG_GRPC: dict[str, tuple[pb.GenerateRequest, str]] = {
    "no-prompt": (pb.GenerateRequest(), "prompt"),
    "token-outside": (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1000])), "token_ids"),
    "temperature": (
        pb.GenerateRequest(text="Hi", sampling=pb.SamplingParams(temperature=-1)),
        "temperature",
    ),
    "top-p": (pb.GenerateRequest(text="Hi", sampling=pb.SamplingParams(top_p=2)), "top_p"),
    "stop": (pb.GenerateRequest(text="Hi", sampling=pb.SamplingParams(stop=[""])), "stop"),
    "too-long": (
        pb.GenerateRequest(text="Hi", sampling=pb.SamplingParams(max_tokens=1_000_000)),
        "max_tokens",
    ),
    "resume-without-seed": (
        pb.GenerateRequest(text="Hi", prior_output=[pb.PriorOutput(index=0, token_ids=[5])]),
        "seed",
    ),
}


def _refusal(services: Services, request: pb.GenerateRequest) -> tuple[grpc.StatusCode, str]:
    with grpc.insecure_channel(services.grpc, options=channel_options(Link.PUBLIC)) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=30)
        with pytest.raises(grpc.RpcError):
            list(call)
        return call.code(), call.details()


@pytest.mark.parametrize("name", _WRONG_GRPC)
def test_grpc_names_the_field(services: Services, name: str) -> None:
    request, field = _WRONG_GRPC[name]
    code, details = _refusal(services, request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert field in details


def test_grpc_knows_one_model(services: Services) -> None:
    code, details = _refusal(services, pb.GenerateRequest(text="Hi", model="another"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "another" in details
