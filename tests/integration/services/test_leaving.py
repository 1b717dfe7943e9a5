"""A client that goes away in the middle of its answer gives back everything it held."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from common.grpc_server import Link, channel_options
from proto import inference_pb2 as pb
from proto import inference_pb2_grpc
from tests.integration.services.conftest import NUM_BLOCKS
from tests.integration.services.pool import num_computed_tokens, num_idle_blocks
from tests.support.http_client import HttpClient
from tests.support.processes import eventually
from tests.support.services import ROOT, Services

_PROMPT = list(range(500, 517))

_HTTP_READER = """
import json, sys, urllib.request
body = json.dumps({"prompt": json.loads(sys.argv[2]), "max_tokens": 2000, "temperature": 0,
                   "ignore_eos": True, "stream": True}).encode()
request = urllib.request.Request(
    sys.argv[1] + "/v1/completions", body, {"content-type": "application/json"})
for line in urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request):
    print("read", flush=True)
"""


def _read_then_kill(argv: Sequence[str]) -> None:
    """Starts a client process and kills it once it has read three lines of its stream."""
    process = subprocess.Popen(
        [sys.executable, "-c", *argv], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert process.stdout is not None
    with process:
        for _ in range(3):
            assert process.stdout.readline() == "read\n"
        process.kill()


def _assert_all_blocks_come_back(client: HttpClient) -> None:
    assert eventually(lambda: num_idle_blocks(client) == NUM_BLOCKS, patience_s=2.0)
    computed = num_computed_tokens(client)
    client.token_ids(prompt=[70], max_tokens=2, temperature=0, ignore_eos=True)
    assert num_computed_tokens(client) == computed + 2, "something else still runs"


def test_c35_killing_an_http_client_frees_its_blocks(
    services: Services, client: HttpClient
) -> None:
    _read_then_kill([_HTTP_READER, services.http, str(_PROMPT)])
    _assert_all_blocks_come_back(client)


def test_cancelling_a_grpc_call_frees_its_blocks(services: Services, client: HttpClient) -> None:
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=_PROMPT),
        sampling=pb.SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True),
    )
    with grpc.insecure_channel(services.grpc, options=channel_options(Link.PUBLIC)) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=110)
        for _ in range(3):
            next(call)
        call.cancel()
    _assert_all_blocks_come_back(client)


@pytest.mark.parametrize("others", [3])
def test_those_who_stay_are_not_disturbed(
    services: Services, client: HttpClient, others: int
) -> None:
    body: dict[str, Any] = {
        "prompt": _PROMPT,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    alone = client.token_ids(max_tokens=400, **body)
    streams = [
        client.stream(max_tokens=400, cache_salt=f"stays-{i}", **body) for i in range(others)
    ]
    firsts = [next(stream) for stream in streams]
    _read_then_kill([_HTTP_READER, services.http, str(_PROMPT)])
    for first, stream in zip(firsts, streams, strict=True):
        events = [first, *stream]
        token_ids = [t for e in events for c in e["choices"] for t in c["token_ids"]]
        assert token_ids == alone
