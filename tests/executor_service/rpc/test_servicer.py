from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.plan import SequenceId, StepPlan
from common.protocol import MAX_MODEL_PART_BYTES, PROTOCOL_VERSION
from executor_service.rpc.servicer import SERVICE_NAME
from executor_service.rpc.step_stream import MAX_QUEUED_STEPS
from proto import executor_pb2
from tests.common.histories import History
from tests.executor_service.rpc.harness import INCARNATION, Script, Stream, served
from tests.support.scripted_runner import ScriptedRunner
from tests.support.shadow_executor import ShadowExecutor


def script() -> Script:
    return Script(History(1, max_live=1).add(num_tokens=20))


async def code_of(call: object) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value.code()


async def test_hello_tells_the_runners_spec_and_grants_an_epoch() -> None:
    async with served() as executor:
        reply = await executor.hello()
        spec = executor.runner.spec
        assert (reply.incarnation, reply.epoch) == (INCARNATION, 1)
        assert reply.protocol_version == PROTOCOL_VERSION
        assert reply.model_fingerprint == spec.fingerprint
        for name in ("model_name", "block_size", "num_blocks", "max_rows", "vocab_size", "device"):
            assert getattr(reply, name) == getattr(spec, name)
        assert list(reply.capabilities) == ["logprobs"]


async def test_hello_refuses_another_protocol_version() -> None:
    async with served() as executor:
        request = executor_pb2.HelloRequest(scheduler_id="a", protocol_version=99)
        assert await code_of(executor.stub.Hello(request)) is grpc.StatusCode.FAILED_PRECONDITION


async def test_taken_executor_refuses_others_and_names_its_owner() -> None:
    async with served() as executor:
        stream = await executor.open("first")
        with pytest.raises(grpc.aio.AioRpcError, match="owner: first, epoch 1"):
            await executor.hello("second")
        stream.call.cancel()
        await executor.info_when(lambda info: info.owner == "")
        assert (await executor.hello("second")).epoch == 2


async def test_model_files_come_whole_in_parts_of_at_most_1_mib() -> None:
    runner = ScriptedRunner(ShadowExecutor(8, 16))
    runner.model_files["tokenizer.json"] = bytes(range(256)) * 10_000  # type: ignore[index]
    async with served(runner) as executor:
        files: dict[str, bytes] = {}
        async for part in executor.stub.GetModel(executor_pb2.GetModelRequest()):
            assert part.fingerprint == runner.spec.fingerprint
            assert len(part.data) <= MAX_MODEL_PART_BYTES
            files[part.file_name] = files.get(part.file_name, b"") + part.data
    assert files == dict(runner.model_files)


async def test_known_model_is_not_sent_again() -> None:
    async with served() as executor:
        request = executor_pb2.GetModelRequest(known_fingerprint=executor.runner.spec.fingerprint)
        parts = [part async for part in executor.stub.GetModel(request)]
    assert [(part.file_name, part.data) for part in parts] == [("", b"")]


async def test_results_come_in_plan_order_and_are_the_models() -> None:
    async with served() as executor:
        stream, steps = await executor.open(), script()
        await stream.send(steps.prompt())
        tokens = [steps.took(await stream.receive())]
        for _ in range(40):
            await stream.send(steps.decode())
            tokens.append(steps.took(await stream.receive()))
        prompt = steps.live.tokens[:20].tolist()
        expected = executor.runner.shadow.model
        assert tokens == expected_tokens(expected, prompt, steps, len(tokens))
        info = await executor.info()
        assert (info.num_steps, info.num_decode_steps, info.num_rows) == (41, 40, 1)


def expected_tokens(model: object, prompt: list[int], steps: Script, count: int) -> list[int]:
    from tests.support.shadow_model import Slot, append_slots

    slots: list[Slot] = []
    append_slots(slots, prompt, 0)
    tokens = []
    for _ in range(count):
        token = model.next_token(  # type: ignore[attr-defined]
            slots[-1], steps.live.spec.params, steps.live.spec.index, len(prompt)
        )
        tokens.append(token)
        append_slots(slots, [token], 0)
    return tokens


async def test_plans_sent_ahead_are_ready_when_the_step_before_ends() -> None:
    runner = ScriptedRunner(ShadowExecutor(64, 16), latency_s=0.02)
    async with served(runner) as executor:
        stream, steps = await executor.open(), script()
        await stream.send(steps.prompt())
        await stream.send(steps.decode())
        results = []
        for _ in range(60):
            result = await stream.receive()
            results.append(result)
            steps.took(result)
            await stream.send(steps.decode())
        info = await executor.info()
    assert not results[0].plan_was_ready
    assert info.num_decode_steps >= 58
    assert info.num_decode_steps_ready / info.num_decode_steps > 0.9
    gaps = sorted(result.timings.gap_ns for result in results[1:])
    assert gaps[len(gaps) // 2] < 10e6


async def test_plans_sent_one_at_a_time_are_never_ready() -> None:
    runner = ScriptedRunner(ShadowExecutor(64, 16), latency_s=0.001)
    async with served(runner) as executor:
        stream, steps = await executor.open(), script()
        await stream.send(steps.prompt())
        for _ in range(20):
            steps.took(await stream.receive())
            await stream.send(steps.decode())
        await stream.receive()
        info = await executor.info()
    assert info.num_decode_steps == 20
    assert info.num_decode_steps_ready == 0


@pytest.mark.parametrize(
    "change",
    [
        {"message_number": 5},
        {"epoch": 9},
        {"incarnation": 1},
        {"step_id": 77},
    ],
)
async def test_message_out_of_step_is_answered_by_resync_and_the_end(
    change: dict[str, int],
) -> None:
    async with served() as executor:
        stream, steps = await executor.open(), script()
        await stream.send(steps.prompt())
        steps.took(await stream.receive())
        message = stream.encode(steps.decode())
        for name, value in change.items():
            setattr(message, name, value)
        await stream.call.write(message)
        reply = await stream.read()
        assert reply.resync.reason
        assert await stream.read() is grpc.aio.EOF
        info = await executor.info()
        assert (info.num_resyncs, info.num_steps, info.owner) == (1, 1, "")
        # The same epoch again is a reconnect, and a fresh stream works.
        again = await executor.open("a", epoch=1)
        await again.send(Script(steps.live, first_step=50).prompt())
        assert (await again.receive()).step_id == 50


async def test_unreadable_message_is_a_resync() -> None:
    async with served() as executor:
        await executor.hello()
        call = executor.channel.stream_stream(f"/{SERVICE_NAME}/Execute")()
        await call.write(b"\xff\xff\xff garbage")
        reply = executor_pb2.StepResult.FromString(await call.read())
        assert "parsing" in reply.resync.reason
        assert await call.read() is grpc.aio.EOF


async def test_peer_that_floods_is_held_back() -> None:
    runner = ScriptedRunner(ShadowExecutor(64, 16))
    async with served(runner) as executor:
        stream, steps = await executor.open(), script()
        runner.gate.clear()
        plans = [steps.piece() for _ in range(19)]
        sending = asyncio.create_task(_send_all(stream, plans))
        await executor.info_when(lambda _: executor.servicer.steps_in_flight == MAX_QUEUED_STEPS)
        most = 0
        runner.gate.set()
        for plan in plans:
            most = max(most, executor.servicer.steps_in_flight)
            assert (await stream.receive()).step_id == plan.step_id
        await sending
    # Results on their way out still count as in flight, plans held back do not.
    assert most <= 2 * MAX_QUEUED_STEPS


async def _send_all(stream: Stream, plans: list[StepPlan]) -> None:
    for plan in plans:
        await stream.send(plan)


async def test_broken_stream_voids_the_queue_and_the_next_waits_for_the_running_step() -> None:
    runner = ScriptedRunner(ShadowExecutor(64, 16))
    async with served(runner) as executor:
        stream, steps = await executor.open(), script()
        runner.gate.clear()
        await stream.send(steps.prompt())
        await stream.send(steps.decode())
        await stream.send(steps.decode())
        await asyncio.to_thread(runner.started.wait)
        await executor.info_when(lambda _: executor.servicer.steps_in_flight == 3)
        stream.call.cancel()
        await executor.info_when(lambda info: info.owner == "")

        fresh = Script(History(2, max_live=1).add(num_tokens=20), first_step=10)
        again = await executor.open("a")
        await again.send(fresh.prompt())
        await executor.info_when(lambda _: executor.servicer.steps_in_flight == 1)
        assert [plan.step_id for plan in runner.plans] == [1]
        runner.gate.set()
        assert (await again.receive()).step_id == 10
        assert [plan.step_id for plan in runner.plans] == [1, 10]
        assert runner.num_forgets == 2


async def test_higher_epoch_ends_the_old_owners_stream() -> None:
    async with served() as executor:
        old, steps = await executor.open("old"), script()
        await old.send(steps.prompt())
        await old.receive()
        new = await executor.open("new", epoch=8)
        with pytest.raises(grpc.aio.AioRpcError, match="superseded by epoch 8") as caught:
            await old.read()
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await new.send(Script(History(2, max_live=1).add(num_tokens=5)).prompt())
        assert (await new.receive()).step_id == 1


async def test_reconnect_supersedes_a_stream_that_the_server_still_believes_open() -> None:
    async with served() as executor:
        await executor.open("a")
        again = await executor.open("a", epoch=1)
        await again.send(script().prompt())
        assert (await again.receive()).step_id == 1


async def test_execute_without_hello_is_refused() -> None:
    async with served() as executor:
        call = executor.stub.Execute()
        assert await code_of(call.read()) is grpc.StatusCode.FAILED_PRECONDITION


async def test_half_closed_stream_gets_its_results_and_ends_well() -> None:
    async with served() as executor:
        stream, steps = await executor.open(), script()
        await stream.send(steps.prompt())
        await stream.send(steps.decode())
        await stream.call.done_writing()
        assert [(await stream.receive()).step_id for _ in range(2)] == [1, 2]
        assert await stream.read() is grpc.aio.EOF
        assert await stream.call.code() is grpc.StatusCode.OK


async def test_sequences_that_await_a_mask_fail_alone() -> None:
    async with served() as executor:
        stream, history = await executor.open(), History(1, max_live=2)
        first, second = Script(history.add(num_tokens=5)), Script(history.add(num_tokens=5))
        second.live.blocks.append(40)
        plan, other = first.prompt(), second.prompt()
        for name in ("sequences", "starts", "lengths", "token_buffers", "token_lengths"):
            getattr(plan, name).extend(getattr(other, name))
        for name in ("table_buffers", "table_lengths", "num_samples", "sampled"):
            getattr(plan, name).extend(getattr(other, name))
        plan.masked = frozenset({SequenceId(1)})
        await stream.send(plan)
        result = await stream.receive()
        assert [error.sequence_id for error in result.errors] == [1]
        assert result.tokens[0] == 0
        assert result.tokens[1] != 0


async def test_drain_refuses_claims_and_says_whether_a_stream_is_left() -> None:
    async with served() as executor:
        stream = await executor.open()
        request = executor_pb2.DrainRequest(timeout_ms=50)
        assert not (await executor.stub.Drain(request)).idle
        health = health_pb2_grpc.HealthStub(executor.channel)
        status = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert status.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await code_of(executor.hello("b")) is grpc.StatusCode.UNAVAILABLE
        await stream.send(script().prompt())
        assert (await stream.receive()).step_id == 1
        patient = executor_pb2.DrainRequest(timeout_ms=30_000)
        waiting = asyncio.ensure_future(_answer(executor.stub.Drain(patient)))
        stream.call.cancel()
        assert (await waiting).idle
        assert (await executor.info()).draining


async def _answer(call: object) -> executor_pb2.DrainReply:
    return await call  # type: ignore[misc]


async def test_device_fault_is_reported_once_and_nothing_runs_after_it() -> None:
    runner = ScriptedRunner(ShadowExecutor(64, 16), die_after_steps=1)
    async with served(runner) as executor:
        stream, steps = await executor.open(), script()
        await stream.send(steps.prompt())
        steps.took(await stream.receive())
        await stream.send(steps.decode())
        await stream.send(steps.decode())
        fault = await asyncio.wait_for(executor.faults.get(), 30)
        assert "scripted" in str(fault)
        assert runner.shadow.num_steps == 1
        assert executor.faults.empty()


async def test_event_loop_answers_while_the_device_is_busy() -> None:
    runner = ScriptedRunner(ShadowExecutor(64, 16))
    async with served(runner) as executor:
        stream = await executor.open()
        runner.gate.clear()
        await stream.send(script().prompt())
        await asyncio.to_thread(runner.started.wait)
        assert (await asyncio.wait_for(executor.info(), 5)).owner == "a"
