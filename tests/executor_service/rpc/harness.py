"""The real service over a scripted runner, in the test's own process and event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from common.codec import PlanEncoder, decode_result
from common.grpc_server import GrpcServer, Link, Service, channel_options
from common.plan import StepPlan, StepResult
from common.protocol import PROTOCOL_VERSION
from executor_service.rpc.device_thread import DeviceThread
from executor_service.rpc.servicer import SERVICE_NAME, ExecutorServicer
from proto import executor_pb2, executor_pb2_grpc
from tests.common.histories import Live, add_chunk
from tests.support.scripted_runner import ScriptedRunner
from tests.support.shadow_executor import ShadowExecutor

INCARNATION = 4242
PATIENCE_S = 30.0


class Executor:
    """A served executor and a client's stub to it."""

    def __init__(self, runner: ScriptedRunner, servicer: ExecutorServicer, address: str) -> None:
        self.runner = runner
        self.servicer = servicer
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=channel_options(Link.INTERNAL))
        self.stub = executor_pb2_grpc.ExecutorStub(self.channel)
        self.faults: asyncio.Queue[BaseException] = asyncio.Queue()

    async def hello(self, scheduler_id: str = "a", epoch: int = 0) -> executor_pb2.HelloReply:
        return await self.stub.Hello(
            executor_pb2.HelloRequest(
                scheduler_id=scheduler_id, epoch=epoch, protocol_version=PROTOCOL_VERSION
            )
        )

    async def info(self) -> executor_pb2.GetInfoReply:
        return await self.stub.GetInfo(executor_pb2.GetInfoRequest())

    async def open(self, scheduler_id: str = "a", epoch: int = 0) -> Stream:
        reply = await self.hello(scheduler_id, epoch)
        return Stream(self.stub.Execute(), reply)

    async def info_when(
        self, condition: Callable[[executor_pb2.GetInfoReply], bool]
    ) -> executor_pb2.GetInfoReply:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                info = await self.info()
                if condition(info):
                    return info


class Stream:
    """A scheduler's end of an Execute call."""

    def __init__(self, call: Any, hello: executor_pb2.HelloReply) -> None:
        self.call = call
        self.hello = hello
        self.encoder = PlanEncoder(hello.max_rows)

    def encode(self, plan: StepPlan) -> executor_pb2.StepMessage:
        return self.encoder.encode(plan, incarnation=self.hello.incarnation, epoch=self.hello.epoch)

    async def send(self, plan: StepPlan) -> None:
        await self.call.write(self.encode(plan))

    async def read(self) -> executor_pb2.StepResult:
        """The next message; EOF if the call ended well, AioRpcError if not."""
        return await asyncio.wait_for(self.call.read(), PATIENCE_S)

    async def receive(self) -> StepResult:
        message = await self.read()
        assert message is not grpc.aio.EOF, "the stream ended"
        return decode_result(message)


class Script:
    """Plans of one growing sequence that owns its blocks: a prompt, then decodes."""

    def __init__(self, live: Live, *, first_step: int = 1) -> None:
        self.live = live
        self.step_id = first_step
        self.num_computed = 0

    def prompt(self) -> StepPlan:
        self._cover(len(self.live.tokens))
        plan = self._plan(num_decodes=0)
        length = len(self.live.tokens)
        add_chunk(plan, self.live, start=0, length=length, samples=[self.live.spec])
        self.num_computed = length
        return plan

    def piece(self) -> StepPlan:
        """One more token of the prompt, which samples nothing."""
        self._cover(self.num_computed + 1)
        plan = self._plan(num_decodes=0)
        add_chunk(plan, self.live, start=self.num_computed, length=1, samples=[])
        self.num_computed += 1
        return plan

    def decode(self) -> StepPlan:
        """Takes as input the token that the step before samples."""
        self._cover(self.num_computed + 1)
        plan = self._plan(num_decodes=1)
        add_chunk(plan, self.live, start=self.num_computed, length=1, samples=[self.live.spec])
        self.num_computed += 1
        return plan

    def took(self, result: StepResult) -> int:
        self.live.tokens.append(result.tokens[0])
        return result.tokens[0]

    def _plan(self, *, num_decodes: int) -> StepPlan:
        plan = StepPlan(step_id=self.step_id, num_decodes=num_decodes)
        self.step_id += 1
        return plan

    def _cover(self, num_tokens: int) -> None:
        while len(self.live.blocks) * 16 < num_tokens:
            self.live.blocks.append(len(self.live.blocks))


@asynccontextmanager
async def served(runner: ScriptedRunner | None = None) -> AsyncIterator[Executor]:
    runner = runner or ScriptedRunner(ShadowExecutor(64, 16))
    loop = asyncio.get_running_loop()
    faults: asyncio.Queue[BaseException] = asyncio.Queue()
    loaded = asyncio.Event()
    device = DeviceThread(
        lambda: runner,
        on_ready=lambda _: loop.call_soon_threadsafe(loaded.set),
        on_fault=lambda fault: loop.call_soon_threadsafe(faults.put_nowait, fault),
    )
    server: GrpcServer

    async def not_serving() -> None:
        await server.set_not_serving()

    servicer = ExecutorServicer(device, incarnation=INCARNATION, on_drain=not_serving)
    register = partial(executor_pb2_grpc.add_ExecutorServicer_to_server, servicer)
    server = GrpcServer(
        [Service(SERVICE_NAME, register)], host="127.0.0.1", port=0, link=Link.INTERNAL
    )
    await server.start()
    device.start()
    await loaded.wait()
    servicer.set_runner(runner)
    await server.set_serving()
    executor = Executor(runner, servicer, server.address)
    executor.faults = faults
    try:
        yield executor
    finally:
        runner.gate.set()
        await executor.channel.close()
        await server.stop(0)
        assert await asyncio.to_thread(device.stop, PATIENCE_S)
