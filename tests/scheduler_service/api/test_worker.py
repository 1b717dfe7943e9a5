"""One worker from start to end: ports, readiness, draining."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import ConfigError, ModelError
from proto import inference_pb2 as pb
from proto import inference_pb2_grpc
from scheduler_service.api.worker import serve
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.messages import ModelReady, Readiness
from tests.scheduler_service.api.conftest import Script, model_ready
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import IM_END

_SERVING = health_pb2.HealthCheckResponse.SERVING


class RecordingStatus:
    """What a worker reports to its parent."""

    def __init__(self) -> None:
        self.addresses: Mapping[str, str] = {}
        self.is_listening = asyncio.Event()
        self.is_ready = asyncio.Event()
        self.failure = ""

    def listening(self, addresses: Mapping[str, str]) -> None:
        self.addresses = addresses
        self.is_listening.set()

    def ready(self) -> None:
        self.is_ready.set()

    def failed(self, message: str) -> None:
        self.failure = message


class Worker:
    """A running `serve` and its clients."""

    def __init__(self, config: SchedulerConfig, connection: FakeEngineConnection) -> None:
        self.status = RecordingStatus()
        self.stop = asyncio.Event()
        self.has_clients = False
        self.serving = asyncio.create_task(
            serve(config, connection, self.status, self.stop)  # type: ignore[arg-type]
        )

    async def listening(self) -> Worker:
        await asyncio.wait_for(self.status.is_listening.wait(), 20)
        if not self.has_clients:
            self.has_clients = True
            self.http = httpx.AsyncClient(base_url=f"http://{self.status.addresses['http']}")
            self.channel = grpc.aio.insecure_channel(self.status.addresses["grpc"])
            self.stub = inference_pb2_grpc.InferenceStub(self.channel)
        return self

    async def ready(self) -> Worker:
        await self.listening()
        await asyncio.wait_for(self.status.is_ready.wait(), 20)
        return self

    async def is_serving_grpc(self) -> bool:
        health = health_pb2_grpc.HealthStub(self.channel)
        asked = health_pb2.HealthCheckRequest(service="octavo.inference.v1.Inference")
        return bool((await health.Check(asked)).status == _SERVING)

    async def close(self) -> None:
        if self.has_clients:
            await self.http.aclose()
            await self.channel.close()
        self.stop.set()
        with contextlib.suppress(Exception):
            await self.serving
        await asyncio.sleep(0.01)  # closed transports say goodbye a turn later


@pytest_asyncio.fixture
async def worker(
    config: SchedulerConfig, connection: FakeEngineConnection
) -> AsyncIterator[Worker]:
    made = Worker(dataclasses.replace(config, shutdown_timeout=5.0), connection)
    yield made
    await made.close()


@pytest.fixture
def connection(script: Script) -> FakeEngineConnection:
    """With the chat template, as from a real loop."""
    return FakeEngineConnection(model_ready(), script)


async def test_both_ports_serve_one_model(worker: Worker, script: Script) -> None:
    await worker.ready()
    script.say(" fine", then=[IM_END])
    asked = {"messages": [{"role": "user", "content": "How are you?"}]}
    answer = (await worker.http.post("/v1/chat/completions", json=asked)).json()
    assert answer["choices"][0]["message"]["content"] == " fine"
    request = pb.GenerateRequest(text="How", return_text=True)
    replies = [reply async for reply in worker.stub.Generate(request)]
    assert "".join(delta.text for reply in replies for delta in reply.deltas) == " fine"
    assert await worker.is_serving_grpc()
    assert (await worker.http.get("/health/ready")).status_code == 200


async def test_health_is_answered_while_the_model_loads(
    config: SchedulerConfig, script: Script
) -> None:
    loaded: asyncio.Future[ModelReady] = asyncio.get_running_loop().create_future()
    connection = FakeEngineConnection(model_ready(), script)
    connection.model = lambda: asyncio.shield(loaded)  # type: ignore[method-assign,assignment]
    worker = Worker(config, connection)
    await worker.listening()
    assert (await worker.http.get("/health")).status_code == 200
    assert (await worker.http.get("/health/ready")).status_code == 503
    assert not await worker.is_serving_grpc()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await worker.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not worker.status.is_ready.is_set()
    loaded.set_result(model_ready())
    await worker.ready()
    assert (await worker.http.get("/health/ready")).status_code == 200
    await worker.close()


async def test_readiness_follows_the_loop(worker: Worker, connection: FakeEngineConnection) -> None:
    await worker.ready()
    connection.set_readiness(Readiness(False, "no executor"))
    async with asyncio.timeout(5):
        while await worker.is_serving_grpc():
            pass
    assert (await worker.http.get("/health/ready")).status_code == 503
    connection.set_readiness(Readiness(True))
    async with asyncio.timeout(5):
        while not await worker.is_serving_grpc():
            pass
    assert (await worker.http.get("/health/ready")).status_code == 200


async def test_an_idle_worker_stops_at_once(worker: Worker) -> None:
    await worker.ready()
    assert (await worker.http.get("/health")).status_code == 200  # a connection is kept open
    worker.stop.set()
    async with asyncio.timeout(3):
        await worker.serving


async def test_running_requests_end_before_the_worker_does(
    worker: Worker, script: Script, connection: FakeEngineConnection
) -> None:
    await worker.ready()
    script.say(" all of it", then=[IM_END])
    connection.may_step.clear()
    asked = {"prompt": "a", "stream": True, "max_tokens": 50}
    streaming = asyncio.create_task(worker.http.post("/v1/completions", json=asked))
    call = worker.stub.Generate(pb.GenerateRequest(text="a", return_text=True))
    assert (await call.read()).HasField("started")
    async with asyncio.timeout(5):
        while connection.num_live < 2:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)
    worker.stop.set()
    async with asyncio.timeout(5):
        while (await worker.http.get("/health/ready")).status_code == 200:
            pass
    refused = await worker.http.post("/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 503
    connection.may_step.set()
    assert (await streaming).text.endswith("data: [DONE]\n\n")
    replies = []
    while (reply := await call.read()) is not grpc.aio.EOF:
        replies.append(reply)
    assert replies[-1].HasField("usage")
    await worker.serving
    assert connection.aborts == []


async def test_what_does_not_end_in_time_is_told_so(
    config: SchedulerConfig, script: Script, connection: FakeEngineConnection
) -> None:
    worker = Worker(dataclasses.replace(config, shutdown_timeout=0.2), connection)
    await worker.ready()
    script.say_ids([300] * 500)
    first = connection.may_step
    asked: dict[str, Any] = {"prompt": "a", "stream": True, "max_tokens": 400}
    call = worker.stub.Generate(pb.GenerateRequest(text="a"))
    async with worker.http.stream("POST", "/v1/completions", json=asked) as streaming:
        lines = streaming.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        first.clear()
        assert (await call.read()).HasField("started")
        worker.stop.set()
        rest = [line async for line in lines if line]
    assert "shutting down" in rest[-2]
    assert rest[-1] == "data: [DONE]"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        while await call.read() is not grpc.aio.EOF:
            pass
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    await worker.serving
    assert connection.num_live == 0
    await worker.close()


@pytest.mark.parametrize("field", ["port", "grpc_port"])
async def test_a_port_in_use_is_named(
    config: SchedulerConfig, connection: FakeEngineConnection, field: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = dataclasses.replace(config, **{field: taken.getsockname()[1]})
        with pytest.raises(ConfigError, match="--" + field.replace("_", "-")):
            await serve(busy, connection, RecordingStatus(), asyncio.Event())  # type: ignore[arg-type]


async def test_two_workers_share_a_port(
    config: SchedulerConfig, connection: FakeEngineConnection
) -> None:
    with socket.socket() as held, socket.socket() as held_too:
        ports = []
        for holder in (held, held_too):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(("127.0.0.1", 0))
            ports.append(holder.getsockname()[1])
        shared = dataclasses.replace(config, api_workers=2, port=ports[0], grpc_port=ports[1])
        workers = [Worker(shared, connection) for _ in range(2)]
        for worker in workers:
            await worker.ready()
            assert worker.status.addresses["http"] == f"127.0.0.1:{ports[0]}"
            assert worker.status.addresses["grpc"] == f"127.0.0.1:{ports[1]}"
        for worker in workers:
            await worker.close()


async def test_an_unusable_model_ends_the_worker_with_its_reason(
    config: SchedulerConfig, script: Script
) -> None:
    status = RecordingStatus()
    connection = FakeEngineConnection(model_ready(files={}), script)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        await serve(config, connection, status, asyncio.Event())  # type: ignore[arg-type]
    assert "tokenizer.json" in status.failure
