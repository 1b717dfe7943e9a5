"""A whole Octavo in the test's own process and event loop, over a runner that a test can hold.

HTTP and gRPC on ports of their own, the worker's socket, the step loop and the executor's service
are the product's; what a process of its own would hide, such as the maps of each part, is in reach.

async with octavo(path, HeldRunner(runner), max_num_seqs=8) as whole:
    await whole.complete(prompt=[5, 6, 7], max_tokens=4)
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx

from common.grpc_server import Link, channel_options
from common.plan import StepPlan, StepResult
from executor_service.rpc.runner_port import RunnerSpec, StepRunner
from proto import inference_pb2_grpc
from scheduler_service.api import worker
from scheduler_service.config import SchedulerConfig
from scheduler_service.core import invariants
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.engine.connection import EngineConnection
from scheduler_service.engine.executor_client import GrpcExecutorClient
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.messages import Abort, Command
from scheduler_service.engine.server import EngineServer, WorkerLink
from tests.executor_service.rpc.harness import Executor, served

PATIENCE_S = 20.0


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)


class StepGate:
    """Open, or closed but for as many steps as were let through."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = True
        self._num_let_through = 0

    def set(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._is_open, self._num_let_through = False, 0

    def let_through(self, num_steps: int) -> None:
        with self._changed:
            self._num_let_through += num_steps
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._num_let_through > 0)
            if not self._is_open:
                self._num_let_through -= 1


class HeldRunner:
    """Runs every step on the runner below, once its gate lets the step through."""

    def __init__(self, runner: StepRunner) -> None:
        self.gate = StepGate()
        self.num_steps = 0
        """That have ended."""
        self.plans: list[StepPlan] = []
        """Every plan that arrived, in order."""
        self._runner = runner
        # A template takes a process of its own.
        self._files = {
            name: data for name, data in runner.model_files.items() if "jinja" not in name
        }

    @property
    def spec(self) -> RunnerSpec:
        return self._runner.spec

    @property
    def model_files(self) -> Mapping[str, bytes]:
        return self._files

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self.gate.wait()
        result = self._runner.execute(plan)
        self.num_steps += 1
        return result

    def forget_samples(self) -> None:
        self._runner.forget_samples()


class _RecordingLoop(EngineLoop):
    """Keeps what workers ask to abort."""

    def __init__(self, config: SchedulerConfig, clients: list[GrpcExecutorClient]) -> None:
        super().__init__(config, clients)
        self.aborted_ids: list[str] = []

    def receive(self, worker: WorkerLink, commands: list[Command]) -> None:
        self.aborted_ids += [c.request_id for c in commands if isinstance(c, Abort)]
        super().receive(worker, commands)


class _Status:
    """What the worker would tell its parent."""

    def __init__(self) -> None:
        self.addresses: Mapping[str, str] = {}
        self.is_ready = asyncio.Event()

    def listening(self, addresses: Mapping[str, str]) -> None:
        self.addresses = addresses

    def ready(self) -> None:
        self.is_ready.set()

    def failed(self, message: str) -> None:
        raise AssertionError(message)


class OneProcess:
    """The parts, and clients of the whole."""

    def __init__(
        self,
        runner: HeldRunner,
        executor: Executor,
        loop: _RecordingLoop,
        connection: EngineConnection,
        addresses: Mapping[str, str],
    ) -> None:
        self.runner = runner
        self.executor = executor
        self.loop = loop
        self.connection = connection
        self.http_address = addresses["http"]
        self.grpc_address = addresses["grpc"]
        self.http = httpx.AsyncClient(base_url=f"http://{self.http_address}", timeout=PATIENCE_S)
        self.channel = grpc.aio.insecure_channel(
            self.grpc_address, options=channel_options(Link.PUBLIC)
        )
        self.stub = inference_pb2_grpc.InferenceStub(self.channel)

    @property
    def core(self) -> Scheduler:
        scheduler = self.loop.lanes[0].core.scheduler
        assert scheduler is not None
        return scheduler

    @property
    def aborted_ids(self) -> list[str]:
        """Of every abort that reached the step loop, in order."""
        return self.loop.aborted_ids

    @property
    def num_useful_aborts(self) -> int:
        """Of those, aborts of a live request."""
        return self.loop._metrics.num_aborts

    async def complete(self, **body: Any) -> Any:
        """The JSON answer of /v1/completions, with token ids."""
        response = await self.http.post("/v1/completions", json={"return_token_ids": True} | body)
        assert response.status_code == 200, response.text
        return response.json()

    async def token_ids(self, **body: Any) -> list[int]:
        (choice,) = (await self.complete(**body))["choices"]
        return list(choice["token_ids"])

    async def check_clean(self) -> None:
        """Within 2 s nobody holds anything of any request, in any part."""
        core = self.core
        live = self.loop._live
        await until(
            lambda: not (core.has_work or core.num_in_flight or live._requests), patience_s=2.0
        )
        counters = core.counters
        assert counters.num_running == counters.num_waiting == counters.num_referenced_blocks == 0
        assert counters.num_free_blocks + counters.num_evictable_blocks == counters.num_blocks
        invariants.check(core)  # no block twice in the free list, no references held
        state = core.state
        maps = (state.sequences, state.requests, state.running, live._choices, live._ids)
        assert not any(maps), maps
        await until(lambda: not self.connection._streams, patience_s=2.0)
        assert not self.connection._choices_left
        # Rows of what ended last are given back by the next plan.
        await self.token_ids(prompt=[5], max_tokens=1)
        assert (await self.executor.info()).num_rows <= 1


@contextlib.asynccontextmanager
async def octavo(path: Path, runner: HeldRunner, **flags: Any) -> AsyncIterator[OneProcess]:
    """Ready to serve. `flags` are the scheduler's; `path` is a folder for its socket."""
    config = SchedulerConfig(
        port=0,
        grpc_port=0,
        executors=("127.0.0.1:1",),
        engine_socket=str(path / "engine.sock"),
        role="engine",
        shutdown_timeout=1.0,
    )
    config = dataclasses.replace(config, **flags)
    async with contextlib.AsyncExitStack() as stack:
        executor = await stack.enter_async_context(served(runner))  # type: ignore[arg-type]
        client = GrpcExecutorClient(executor.address, scheduler_id="one")
        stack.push_async_callback(client.close)
        loop = _RecordingLoop(config, [client])
        server = EngineServer(str(path / "engine.sock"), loop)
        await server.start()
        stack.push_async_callback(server.stop)
        running = asyncio.create_task(loop.run())
        stack.push_async_callback(_cancelled, running)
        connection = await EngineConnection.open(str(path / "engine.sock"))
        stack.push_async_callback(connection.close)
        status, stop = _Status(), asyncio.Event()
        serving = asyncio.create_task(worker.serve(config, connection, status, stop))  # type: ignore[arg-type]
        stack.push_async_callback(_stopped, serving, stop)
        stack.callback(runner.gate.set)
        await asyncio.wait_for(status.is_ready.wait(), PATIENCE_S)
        whole = OneProcess(runner, executor, loop, connection, status.addresses)
        stack.push_async_callback(whole.http.aclose)
        stack.push_async_callback(whole.channel.close)
        yield whole
        assert not running.done(), running.exception()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _stopped(serving: asyncio.Task[None], stop: asyncio.Event) -> None:
    stop.set()
    await serving
