"""The client and the loop against the real executor service, over gRPC on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from common.errors import ExecutorLostError, OwnershipError
from common.plan import StepPlan, StepResult
from scheduler_service.engine.executor_client import GrpcExecutorClient, StepStream
from tests.executor_service.rpc.harness import Executor, served
from tests.support.builders import random_ids
from tests.support.engine_harness import GREEDY, Harness, engine
from tests.support.scripted_runner import ScriptedRunner
from tests.support.shadow_executor import ShadowExecutor
from tests.support.shadow_model import expected_output


@contextlib.asynccontextmanager
async def connected(executor: Executor, name: str = "s") -> AsyncIterator[GrpcExecutorClient]:
    client = GrpcExecutorClient(executor.address, scheduler_id=name)
    yield client
    await client.close()


async def first_result(stream: StepStream) -> StepResult:
    async for result in stream.results():
        return result
    raise AssertionError("the results ended quietly")


async def test_hello_tells_everything_about_the_executor() -> None:
    async with served() as executor, connected(executor) as client:
        info = await client.hello(0)
    spec = executor.runner.spec
    assert info.epoch == 1
    assert info.num_blocks == spec.num_blocks
    assert info.model_fingerprint == spec.fingerprint
    assert info.incarnation != 0


async def test_the_model_is_fetched_whole_and_once() -> None:
    async with served() as executor, connected(executor) as client:
        info = await client.hello(0)
        files = await client.get_model(info)
        assert files == executor.runner.model_files
        again = await client.hello(info.epoch)
        assert await client.get_model(again) is files


async def test_an_executor_of_another_scheduler_is_refused_by_its_owner() -> None:
    async with served() as executor, connected(executor) as one:
        info = await one.hello(0)
        stream = one.open_stream(info)
        reading = asyncio.create_task(first_result(stream))
        await executor.info_when(lambda info: info.owner == "s")
        async with connected(executor, "other") as other:
            with pytest.raises(OwnershipError, match="s"):
                await other.hello(0)
        stream.cancel()
        with pytest.raises(ExecutorLostError):
            await reading


async def test_nobody_there_is_an_executor_lost() -> None:
    async with served() as executor:
        address = executor.address
    client = GrpcExecutorClient(address, scheduler_id="s")
    with pytest.raises(ExecutorLostError):
        await client.hello(0)
    await client.close()


async def test_cancelling_the_stream_ends_its_results() -> None:
    async with served() as executor, connected(executor) as client:
        stream = client.open_stream(await client.hello(0))
        reading = asyncio.create_task(first_result(stream))
        await asyncio.sleep(0)
        stream.cancel()
        with pytest.raises(ExecutorLostError):
            await reading


async def test_cancelling_the_reader_is_no_loss_of_the_executor() -> None:
    async with served() as executor, connected(executor) as client:
        stream = client.open_stream(await client.hello(0))
        reading = asyncio.create_task(first_result(stream))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        stream.cancel()


@contextlib.asynccontextmanager
async def whole(
    runner: ScriptedRunner | None = None, **flags: object
) -> AsyncIterator[tuple[Harness, Executor]]:
    """A loop joined to one real executor service."""
    async with (
        served(runner) as executor,
        connected(executor) as client,
        engine(client, **flags) as harness,  # type: ignore[arg-type]
    ):
        yield harness, executor


@pytest.mark.parametrize("depth", [1, 2])
async def test_tokens_over_the_wire_are_those_of_the_model(depth: int) -> None:
    asks = [(random_ids(i, 5 + 13 * i), 10 + i) for i in range(12)]
    async with whole(run_ahead_depth=depth) as (harness, executor):
        received = [harness.worker.submit(prompt, max_tokens=count) for prompt, count in asks]
        await harness.worker.ended(*received)
        model = executor.runner.shadow.model
    for (prompt, count), each in zip(asks, received, strict=True):
        assert each.tokens == {0: expected_output(model, prompt, count, GREEDY)}


class SteppedRunner(ScriptedRunner):
    """Ends a step only when it is permitted to, so that no clock decides what was ready."""

    def __init__(self) -> None:
        super().__init__(ShadowExecutor(256, 16))
        self.permits = threading.Semaphore(0)

    def execute(self, plan: StepPlan) -> StepResult:
        self.permits.acquire()
        return super().execute(plan)


async def share_of_ready_steps(depth: int, *, num_steps: int = 200) -> float:
    """Of steady decode steps, as the executor counts them, when each step lasts until the next
    message of the scheduler has come."""
    runner = SteppedRunner()
    async with whole(runner, run_ahead_depth=depth) as (harness, executor):
        received = [harness.worker.submit(random_ids(i, 4), max_tokens=num_steps) for i in range(4)]
        await until(lambda: executor.servicer.steps_in_flight == depth)
        for _ in range(num_steps - depth):
            seen = executor.servicer.counters.plan_bytes
            runner.permits.release()
            await until(partial(_has_grown, executor, seen))
        runner.permits.release(depth)
        await harness.worker.ended(*received)
        info = await executor.info()
    assert info.num_decode_steps >= num_steps - 5
    return info.num_decode_steps_ready / info.num_decode_steps


def _has_grown(executor: Executor, seen: int) -> bool:
    return executor.servicer.counters.plan_bytes > seen


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not condition():  # noqa: ASYNC110 - nothing there tells
            await asyncio.sleep(0)


async def test_with_run_ahead_the_device_finds_its_plans_decoded() -> None:
    assert await share_of_ready_steps(2) >= 0.99


async def test_without_run_ahead_it_never_does() -> None:
    assert await share_of_ready_steps(1) == 0.0


async def test_a_break_of_the_connection_loses_and_repeats_nothing() -> None:
    prompts = [random_ids(i, 20) for i in range(4)]
    async with whole() as (harness, executor):
        received = [harness.worker.submit(prompt, max_tokens=120) for prompt in prompts]
        for count in (20, 40, 60, 80):
            await harness.worker.until(
                lambda count=count: all(each.num_tokens >= count for each in received)
            )
            client = harness.clients[0]
            assert isinstance(client, GrpcExecutorClient)
            await client.close()
        await harness.worker.ended(*received)
        model = executor.runner.shadow.model
        assert harness.loop.lanes[0].metrics.num_reconnects == 4
    for prompt, each in zip(prompts, received, strict=True):
        assert each.tokens == {0: expected_output(model, prompt, 120, GREEDY)}
