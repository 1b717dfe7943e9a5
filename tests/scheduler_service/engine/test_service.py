"""The step loop's process as its worker sees it: real socket, real executor service."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from common.plan import SamplingParams
from common.process import ProcessStatus
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.connection import EngineConnection
from scheduler_service.engine.messages import Finished, ServerInfo, Submit
from scheduler_service.engine.service import serve
from scheduler_service.engine.streams import RequestStream
from tests.executor_service.rpc.harness import Executor, served
from tests.support.builders import random_ids
from tests.support.scripted_runner import ScriptedRunner
from tests.support.shadow_executor import ShadowExecutor
from tests.support.shadow_model import expected_output

GREEDY = SamplingParams(temperature=0.0)


class Service:
    def __init__(
        self, connection: EngineConnection, executor: Executor, stop: asyncio.Event
    ) -> None:
        self.connection = connection
        self.executor = executor
        self.stop = stop
        self.ended = asyncio.Event()

    def submit(self, prompt: list[int], max_tokens: int) -> RequestStream:
        stream = RequestStream()
        handle = self.connection.next_handle()
        prompt_bytes = array("i", prompt).tobytes()
        submit = Submit(handle, f"r{handle}", prompt_bytes, GREEDY, max_tokens=max_tokens)
        self.connection.submit(submit, stream)
        return stream

    def expected(self, prompt: list[int], count: int) -> list[int]:
        return expected_output(self.executor.runner.shadow.model, prompt, count, GREEDY)


@contextlib.asynccontextmanager
async def service(path: Path, *, latency_s: float = 0.0, **flags: object) -> AsyncIterator[Service]:
    runner = ScriptedRunner(ShadowExecutor(256, 16), latency_s=latency_s)
    async with served(runner) as executor:
        config = SchedulerConfig(
            executors=(executor.address,),
            role="engine",
            engine_socket=str(path / "engine.sock"),
            check_invariants=True,
        )
        config = replace(config, **flags)  # type: ignore[arg-type]
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(config, ProcessStatus(None), stop))
        connection = await EngineConnection.open(str(path / "engine.sock"))
        whole = Service(connection, executor, stop)
        serving.add_done_callback(lambda _: whole.ended.set())
        try:
            while not connection.readiness.ready:
                await connection.readiness_changed()
            yield whole
        finally:
            stop.set()
            await connection.close()
            await serving


async def read(stream: RequestStream) -> tuple[list[int], Finished]:
    tokens: list[int] = []
    while True:
        update = await asyncio.wait_for(stream.next(), 20.0)
        assert update.refused is None and update.lost is None, update
        tokens += update.tokens.get(0, [])
        if update.finished:
            return tokens, update.finished[0]


async def test_tokens_come_through_socket_and_wire(tmp_path: Path) -> None:
    asks = [(random_ids(i, 3 + 17 * i), 5 + 9 * i) for i in range(6)]
    async with service(tmp_path) as whole:
        model = await whole.connection.model()
        assert model.name == "shadow"
        assert model.files == whole.executor.runner.model_files
        streams = [whole.submit(prompt, count) for prompt, count in asks]
        outcomes = [await read(stream) for stream in streams]
        for (prompt, count), (tokens, finished) in zip(asks, outcomes, strict=True):
            assert tokens == whole.expected(prompt, count)
            assert finished.num_output_tokens == count
        info = await whole.connection.call("server_info")
        assert isinstance(info, ServerInfo)
        assert info.num_executors == 1
        assert info.num_free_blocks == info.num_blocks == 256


async def test_stopping_lets_running_requests_end_and_refuses_new_ones(tmp_path: Path) -> None:
    prompt = random_ids(1, 9)
    async with service(tmp_path, latency_s=0.005) as whole:
        stream = whole.submit(prompt, 60)
        first = await stream.next()
        whole.stop.set()
        readiness = await whole.connection.readiness_changed()
        assert readiness.draining and not readiness.ready
        refused = await whole.submit(prompt, 4).next()
        assert refused.refused is not None and refused.refused.kind == "unavailable"
        tokens, finished = await read(stream)
        assert first.tokens.get(0, []) + tokens == whole.expected(prompt, 60)
        assert finished.reason == "length"
        await asyncio.wait_for(whole.ended.wait(), 20.0)


async def test_requests_that_do_not_end_in_time_are_aborted(tmp_path: Path) -> None:
    async with service(tmp_path, latency_s=0.005, shutdown_timeout=0.05) as whole:
        stream = whole.submit(random_ids(1, 9), 3000)
        await stream.next()
        whole.stop.set()
        _, finished = await read(stream)
        assert finished.reason == "abort"
        await asyncio.wait_for(whole.ended.wait(), 20.0)


async def test_a_worker_that_vanishes_leaves_nothing_running(tmp_path: Path) -> None:
    async with service(tmp_path, latency_s=0.002, enable_prefix_caching=False) as whole:
        other = await EngineConnection.open(str(tmp_path / "engine.sock"))
        stream = whole.submit(random_ids(1, 9), 3000)
        await stream.next()
        await whole.connection.close()
        while True:
            info = await other.call("server_info")
            assert isinstance(info, ServerInfo)
            if info.num_requests_running == 0 and info.num_free_blocks == info.num_blocks:
                break
        await other.close()
