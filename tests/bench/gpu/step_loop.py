"""A step loop over one executor's Execute stream: the core's scheduler, the codec, gRPC.

Not the scheduler service's own loop (`EngineLoop`, `ExecutorLane`), whose messages to API workers
need msgspec, which a machine with a GPU may not have. What that adds to a step, and the
API, is not in these figures; `python -m tests.bench.bench_engine_loop` measures the loop alone.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from common.codec import PlanEncoder, decode_result
from common.grpc_server import Link, channel_options
from common.plan import TOKEN_TYPECODE, SamplingParams, StepTimings
from common.protocol import PROTOCOL_VERSION
from proto import executor_pb2, executor_pb2_grpc
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.request import FinishReason, Request
from scheduler_service.core.scheduler import Scheduler


@dataclass(slots=True)
class Served:
    """One run: all requests at once, until the last has ended."""

    began_at: float
    arrivals: dict[str, list[float]]
    """When each token of each request was applied."""
    tokens: dict[str, list[int]]
    decode_timings: list[StepTimings] = field(default_factory=list)
    """Of steps that held decodes alone."""
    ended_at: float = 0.0


class StepLoop:
    def __init__(self, stub: Any, hello: Any, depth: int) -> None:
        self._hello = hello
        self._stream = stub.Execute()
        self._encoder = PlanEncoder(hello.max_rows)
        self._scheduler = Scheduler(
            SchedulerLimits(
                block_size=hello.block_size,
                num_blocks=hello.num_blocks,
                max_num_seqs=hello.max_rows // 2,
                max_num_batched_tokens=hello.max_num_batched_tokens,
                max_model_len=hello.max_model_len,
                vocab_size=hello.vocab_size,
                depth=depth,
            )
        )
        self._decodes: dict[int, bool] = {}
        self._num_requests = 0

    async def serve(self, prompts: Sequence[Sequence[int]], num_outputs: int) -> Served:
        ids = [self._add(prompt, num_outputs) for prompt in prompts]
        served = Served(time.perf_counter(), {i: [] for i in ids}, {i: [] for i in ids})
        scheduler = self._scheduler
        while scheduler.has_work or scheduler.num_in_flight:
            while (plan := scheduler.schedule()) is not None:
                self._decodes[plan.step_id] = plan.num_decodes == plan.num_chunks
                hello = self._hello
                message = self._encoder.encode(
                    plan, incarnation=hello.incarnation, epoch=hello.epoch
                )
                await self._stream.write(message)
            message = await self._stream.read()
            if message is grpc.aio.EOF:
                raise RuntimeError("the executor ended the stream")
            self._apply(decode_result(message), served)
        served.ended_at = time.perf_counter()
        return served

    async def close(self) -> None:
        await self._stream.done_writing()
        assert await self._stream.read() is grpc.aio.EOF

    def _add(self, prompt: Sequence[int], num_outputs: int) -> str:
        self._num_requests += 1
        request_id = str(self._num_requests)
        self._scheduler.add(
            Request(
                request_id=request_id,
                prompt_token_ids=array(TOKEN_TYPECODE, prompt),
                params=SamplingParams(temperature=0.0),
                max_tokens=num_outputs,
            )
        )
        return request_id

    def _apply(self, result: Any, served: Served) -> None:
        if result.errors:
            raise RuntimeError(f"the executor failed {result.errors}")
        self._scheduler.apply(result)
        events = self._scheduler.take_events()
        now = time.perf_counter()
        for key, token in zip(events.keys, events.tokens, strict=True):
            served.arrivals[key.request_id].append(now)
            served.tokens[key.request_id].append(token)
        for finished in events.finished:
            assert finished.reason is FinishReason.LENGTH, finished
        if self._decodes.pop(result.step_id):
            served.decode_timings.append(result.timings)


async def connect(port: int, depth: int = 2) -> tuple[grpc.aio.Channel, StepLoop]:
    address = f"127.0.0.1:{port}"
    channel = grpc.aio.insecure_channel(address, options=channel_options(Link.INTERNAL))
    stub = executor_pb2_grpc.ExecutorStub(channel)
    hello = await stub.Hello(
        executor_pb2.HelloRequest(scheduler_id="bench", epoch=0, protocol_version=PROTOCOL_VERSION)
    )
    return channel, StepLoop(stub, hello, depth)
