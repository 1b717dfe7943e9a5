"""gRPC clients that vanish without a word hold nothing for long, and hold up nobody.

C numbers name acceptance cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.grpc_server import Link, channel_options
from executor_service.runner.model_runner import ModelRunner
from proto import inference_pb2 as pb
from proto import inference_pb2_grpc
from scheduler_service.api import worker
from tests.support.one_process import HeldRunner, OneProcess, octavo, until
from tests.support.services import ROOT
from tests.support.tcp_proxy import proxy_to

_NUM_STREAMS = 24
_NUM_TOKENS = 250
"""Many more than a stream gets while others are answered."""
_CLIENT_OPTIONS = [*channel_options(Link.PUBLIC), ("grpc.use_local_subchannel_pool", 1)]

_READER = f"""
import sys, threading, grpc
from proto import inference_pb2 as pb, inference_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = inference_pb2_grpc.InferenceStub(channel)
    sampling = pb.SamplingParams(max_tokens={_NUM_TOKENS}, ignore_eos=True)
    prompts = [pb.TokenIds(ids=[5, 6, i + 10]) for i in range({_NUM_STREAMS})]
    calls = [
        stub.Generate(pb.GenerateRequest(token_ids=prompt, sampling=sampling)) for prompt in prompts
    ]
    print("open", flush=True)
    threading.Event().wait()
"""

Drop = Callable[[], Awaitable[None]]


@pytest_asyncio.fixture
async def roomy(
    request: pytest.FixtureRequest,
    runner: ModelRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[OneProcess]:
    """Places for all; the parameter is the kind of link whose keepalive its gRPC port has."""
    monkeypatch.setattr(worker, "Link", SimpleNamespace(PUBLIC=request.param))
    async with octavo(tmp_path, HeldRunner(runner), max_num_seqs=64) as started:
        yield started


def _ask(number: int, max_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[5, 6, 10 + number]),
        sampling=pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
    )


@contextlib.asynccontextmanager
async def _streams_through(address: str) -> AsyncIterator[list[Any]]:
    async with grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        calls = [stub.Generate(_ask(i, max_tokens=_NUM_TOKENS)) for i in range(_NUM_STREAMS)]
        reading = [asyncio.ensure_future(call.read()) for call in calls]
        try:
            yield calls
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)


@contextlib.asynccontextmanager
async def _dropped_by_the_network(address: str, how: str) -> AsyncIterator[Drop]:
    async with proxy_to(address) as (proxy, through), _streams_through(through):

        async def drop() -> None:
            getattr(proxy, how)()

        yield drop


@contextlib.asynccontextmanager
async def _frozen(address: str) -> AsyncIterator[Drop]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _READER,
        address,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )

    async def drop() -> None:
        os.kill(process.pid, signal.SIGSTOP)

    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
        yield drop
    finally:
        process.kill()
        await process.wait()


def _clients(address: str, how: str) -> contextlib.AbstractAsyncContextManager[Drop]:
    return _frozen(address) if how == "freeze" else _dropped_by_the_network(address, how)


async def _check_answered(whole: OneProcess) -> None:
    """A fresh call, over a connection of its own, and a health check take less than a second."""
    address = whole.grpc_address
    async with grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS) as channel:
        began = time.monotonic()
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        whole.runner.gate.set()
        call = inference_pb2_grpc.InferenceStub(channel).Generate(_ask(100, max_tokens=1))
        replies = [reply async for reply in call]
        whole.runner.gate.clear()
        assert replies[-1].usage.num_output_tokens == 1
        assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("how", ["reset", "blackhole", "freeze"])
@pytest.mark.parametrize(
    "roomy",
    [Link.INTERNAL, pytest.param(Link.PUBLIC, marks=pytest.mark.slow)],
    indirect=True,
    ids=str,
)
async def test_c83_clients_that_vanish_are_let_go_within_the_keepalive(
    roomy: OneProcess, how: str, request: pytest.FixtureRequest
) -> None:
    link = request.node.callspec.params["roomy"]
    limit_s = {Link.INTERNAL: 1.5 + 1.0, Link.PUBLIC: 10.0 + 5.0}[link]
    roomy.runner.gate.clear()
    async with _clients(roomy.grpc_address, how) as drop:
        await until(lambda: len(roomy.core.state.sequences) == _NUM_STREAMS)
        await drop()
        await _check_answered(roomy)
        await until(lambda: roomy.num_useful_aborts == _NUM_STREAMS, patience_s=2 * limit_s + 2)
        await _check_answered(roomy)
    roomy.runner.gate.set()
    assert len(roomy.aborted_ids) == _NUM_STREAMS
    await roomy.check_clean()


@pytest.mark.parametrize("roomy", [Link.INTERNAL], indirect=True, ids=str)
async def test_c83_a_call_whose_client_has_nothing_more_to_say_goes_on(roomy: OneProcess) -> None:
    """Half-closed, and not read for longer than the keepalive takes."""
    roomy.runner.gate.clear()
    async with _streams_through(roomy.grpc_address) as calls:
        await until(lambda: len(roomy.core.state.sequences) == _NUM_STREAMS)
        waited = asyncio.create_task(asyncio.sleep(4.0))
        await _check_answered(roomy)
        await waited
        assert roomy.aborted_ids == []
        roomy.runner.gate.set()
        for call in calls:
            async with asyncio.timeout(20):
                while (reply := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    last = reply
            assert last.usage.num_output_tokens == _NUM_TOKENS
    await roomy.check_clean()
