"""Losing executors and getting them back: clients see a pause, no error, duplicate or gap."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from functools import partial

import pytest

from common.errors import ResyncError
from common.plan import ErrorCode, SamplingParams, SequenceError, SequenceId, StepResult
from scheduler_service.config import SchedulerConfig
from scheduler_service.core.events import SequenceKey
from scheduler_service.engine.lane import AWAITED_S, ExecutorLane, LaneState
from scheduler_service.engine.metrics import LaneMetrics
from scheduler_service.engine.served_model import ServedModel
from scheduler_service.engine.step_clock import MIN_ALLOWANCE_S, WARM_STEPS
from tests.support.builders import make_request, random_ids
from tests.support.engine_harness import GREEDY, Harness, engine
from tests.support.fake_executor_client import FakeExecutorClient
from tests.support.shadow_model import ShadowModel, expected_output

MODEL = ShadowModel(vocab_size=1000)

Fault = Callable[[FakeExecutorClient], None]

FAULTS: dict[str, Fault] = {
    "the stream breaks": lambda client: client.break_stream(),
    "the stream is out of step": lambda client: client.break_stream(ResyncError("gap")),
    "the process restarts": lambda client: client.restart(),
    "another scheduler used the pool": lambda client: client.take_over(),
}


def expected(prompt: list[int], count: int, params: SamplingParams = GREEDY) -> list[int]:
    return expected_output(MODEL, prompt, count, params)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
async def test_no_token_is_lost_or_sent_twice_wherever_it_breaks(fault: str, depth: int) -> None:
    prompts = [random_ids(i, 3 + 9 * i) for i in range(4)]
    for num_steps in range(1, 24, 3):
        async with engine(run_ahead_depth=depth) as harness:
            harness.client.hold()
            received = [harness.worker.submit(prompt, max_tokens=12) for prompt in prompts]
            await let_steps_pass(harness, num_steps)
            FAULTS[fault](harness.client)
            harness.client.is_held = False
            await harness.worker.ended(*received)
        for prompt, each in zip(prompts, received, strict=True):
            assert each.tokens == {0: expected(prompt, 12)}
            assert each.finished[0].reason == "length"


async def let_steps_pass(harness: Harness, count: int) -> None:
    """Executes so many steps of those that requests need, or all of them."""
    steps = harness.loop.lanes[0].metrics
    for num_steps in range(1, count + 1):
        harness.client.release()
        await harness.worker.until(partial(_has_passed, steps, num_steps, harness.loop.idle))


def _has_passed(steps: LaneMetrics, count: int, idle: asyncio.Event) -> bool:
    return steps.num_steps >= count or (idle.is_set() and steps.num_steps > 0)


async def test_the_same_process_keeps_its_prefix_cache_and_another_one_has_none() -> None:
    prompt = random_ids(1, 41)
    async with engine() as harness:
        await harness.worker.ended(harness.worker.submit(prompt, max_tokens=2))
        harness.client.break_stream()
        await harness.worker.until(lambda: len(harness.client.streams) == 2)
        warm = harness.worker.submit(prompt, max_tokens=2)
        await harness.worker.ended(warm)
        assert warm.num_cached_tokens == 40
        harness.client.restart()
        await harness.worker.until(lambda: len(harness.client.streams) == 3)
        cold = harness.worker.submit(prompt, max_tokens=2)
        await harness.worker.ended(cold)
        assert cold.num_cached_tokens == 0


async def test_a_reconnect_offers_the_epoch_it_was_granted() -> None:
    async with engine() as harness:
        harness.client.break_stream()
        await harness.worker.until(lambda: len(harness.client.streams) == 2)
        assert harness.client.hellos == [0, 1]


async def test_a_fenced_scheduler_asks_for_a_new_epoch() -> None:
    async with engine() as harness:
        harness.client.take_over()
        await harness.worker.until(lambda: len(harness.client.streams) == 2)
        assert harness.client.hellos[:3] == [0, 1, 0]
        assert harness.loop.lanes[0].core.info is not None
        assert harness.loop.lanes[0].core.info.epoch == 3


async def test_an_executor_that_comes_back_with_another_pool_is_used_as_it_is() -> None:
    prompt = random_ids(1, 10)
    async with engine(FakeExecutorClient(num_blocks=64)) as harness:
        received = harness.worker.submit(prompt, max_tokens=40)
        too_long = harness.worker.submit(random_ids(2, 100), max_tokens=40)
        await harness.worker.until(lambda: received.num_tokens > 5 and too_long.num_tokens > 5)
        harness.client.num_blocks = 20
        harness.client.restart()
        await harness.worker.ended(received, too_long)
        assert received.tokens[0] == expected(prompt, 40)
        assert too_long.finished[0].reason == "error"
        assert too_long.tokens[0] == expected(random_ids(2, 100), too_long.num_tokens)
        assert too_long.finished[0].num_output_tokens == too_long.num_tokens


async def test_requests_wait_for_a_lost_executor_and_new_ones_are_refused() -> None:
    async with engine() as harness:
        client = harness.client
        received = harness.worker.submit(random_ids(1, 5), max_tokens=100)
        await harness.worker.until(lambda: received.num_tokens > 3)
        client.is_down = True
        client.restart()
        await harness.worker.until(lambda: not harness.worker.readiness[-1].ready)
        refused = harness.worker.submit(random_ids(2, 5))
        await harness.worker.until(lambda: refused.refused is not None)
        assert refused.refused is not None and refused.refused.kind == "unavailable"
        client.is_down = False
        await harness.worker.ended(received)
        assert received.tokens[0] == expected(random_ids(1, 5), 100)
        assert harness.worker.readiness[-1].ready


async def test_a_request_of_a_lost_executor_can_be_aborted_or_expire() -> None:
    async with engine() as harness:
        client = harness.client
        aborted = harness.worker.submit(random_ids(1, 5), max_tokens=200)
        expiring = harness.worker.submit(random_ids(2, 5), max_tokens=200, timeout_s=0.3)
        await harness.worker.until(lambda: aborted.num_tokens > 3 and expiring.num_tokens > 3)
        client.is_down = True
        client.break_stream()
        await harness.worker.until(lambda: not harness.worker.readiness[-1].ready)
        harness.worker.abort(aborted)
        await harness.worker.ended(aborted, expiring)
        assert aborted.finished[0].reason == "abort"
        assert expiring.finished[0].reason == "expired"


async def test_work_of_a_lost_executor_goes_to_another() -> None:
    one, other = FakeExecutorClient(address="fake:1"), FakeExecutorClient(address="fake:2")
    async with engine(one, other) as harness:
        await harness.worker.until(lambda: len(one.streams) == len(other.streams) == 1)
        prompts = [random_ids(i, 20) for i in range(8)]
        received = [harness.worker.submit(prompt, max_tokens=60) for prompt in prompts]
        await harness.worker.until(lambda: all(each.num_tokens > 3 for each in received))
        assert one.shadow.num_steps and other.shadow.num_steps, "both were used"
        one.is_down = True
        one.break_stream()
        await harness.worker.ended(*received)
        for prompt, each in zip(prompts, received, strict=True):
            assert each.tokens == {0: expected(prompt, 60)}


async def test_a_burst_of_work_moves_past_the_limit_of_the_queue() -> None:
    """Accepted requests are never refused, however many move at once."""
    one = FakeExecutorClient(address="fake:1")
    other = FakeExecutorClient(address="fake:2", is_down=True)
    async with engine(one, other, max_num_waiting=3, max_num_seqs=4) as harness:
        one.hold()
        received = [harness.worker.submit(random_ids(i, 20), max_tokens=9) for i in range(3)]
        await harness.worker.until(lambda: len(one.plans) > 0)
        received += [harness.worker.submit(random_ids(i, 20), max_tokens=9) for i in range(3, 6)]
        await harness.worker.call("server_info")
        other.is_down = False
        await harness.worker.until(lambda: len(other.streams) == 1)
        one.is_down = True
        one.break_stream()
        await harness.worker.ended(*received)
        for i, each in enumerate(received):
            assert each.tokens == {0: expected(random_ids(i, 20), 9)}


async def test_a_request_goes_where_its_prefix_is_cached() -> None:
    one, other = FakeExecutorClient(address="fake:1"), FakeExecutorClient(address="fake:2")
    async with engine(one, other) as harness:
        await harness.worker.until(lambda: len(one.streams) == len(other.streams) == 1)
        first = harness.worker.submit(random_ids(1, 21), max_tokens=2)
        await harness.worker.ended(first)
        used, unused = (one, other) if one.plans else (other, one)
        again = harness.worker.submit(random_ids(1, 21), max_tokens=2)
        await harness.worker.ended(again)
        assert again.num_cached_tokens == 20
        assert not unused.plans and used.plans


async def test_an_executor_with_another_model_is_refused_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = FakeExecutorClient(address="fake:1")
    other = FakeExecutorClient(address="fake:2", fingerprint="0" * 64, is_down=True)
    async with engine(one, other) as harness:
        other.is_down = False
        received = harness.worker.submit(random_ids(1, 5), max_tokens=5)
        await harness.worker.ended(received)
        await other.until(lambda: len(other.hellos) >= 3)
        assert not other.streams
    assert "is being served" in caplog.text


async def test_an_invalid_plan_fails_its_sequence_and_the_rest_start_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with engine() as harness:
        doomed = harness.worker.submit(random_ids(1, 5), max_tokens=90, request_id="doomed")
        fine = harness.worker.submit(random_ids(2, 5), max_tokens=90)
        await harness.worker.until(lambda: doomed.num_tokens > 2)
        sequence_id = harness.core.sequence_id_of(SequenceKey("doomed", 0))
        harness.client.shadow.fail(sequence_id, ErrorCode.INVALID_PLAN)
        await harness.worker.ended(doomed, fine)
        assert doomed.finished[0].reason == "error"
        assert fine.tokens[0] == expected(random_ids(2, 5), 90)
        assert len(harness.client.streams) == 2, "one reset"
        assert harness.worker.readiness[-1].ready
    assert "starting over" in caplog.text


async def test_results_behind_one_that_does_not_fit_are_no_faults_of_their_own() -> None:
    async with engine() as harness:
        received = harness.worker.submit(random_ids(1, 5), max_tokens=90)
        await harness.worker.until(lambda: received.num_tokens > 2)
        (lane,) = harness.loop.lanes
        error = SequenceError(
            sequence_id=SequenceId(10**9), code=ErrorCode.INVALID_PLAN, message="unknown"
        )
        for step_id in (10**6, 10**6 + 1):
            result = StepResult(step_id=step_id, tokens=array("i"), errors=(error,))
            lane._results.append((harness.loop.now(), result))
        await harness.worker.ended(received)
        assert received.tokens[0] == expected(random_ids(1, 5), 90)
        assert lane.metrics.num_invalid_plans == 2
        assert lane.state is LaneState.READY


async def test_two_invalid_plans_within_a_minute_leave_the_executor_alone() -> None:
    async with engine() as harness:
        for number in range(2):
            doomed = harness.worker.submit(
                random_ids(number, 5), max_tokens=200, request_id=f"doomed-{number}"
            )
            await harness.worker.until(lambda doomed=doomed: doomed.num_tokens > 2)
            sequence_id = harness.core.sequence_id_of(SequenceKey(f"doomed-{number}", 0))
            harness.client.shadow.fail(sequence_id, ErrorCode.INVALID_PLAN)
            await harness.worker.ended(doomed)
        await harness.worker.until(lambda: not harness.worker.readiness[-1].ready)
        assert harness.loop.lanes[0].state is LaneState.FAULTY


class StubHost:
    """A lane's host with a clock that the test moves."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.woken = asyncio.Event()

    def now(self) -> float:
        return self.time

    def wake(self) -> None:
        self.woken.set()


async def test_an_overdue_step_reopens_the_stream_once_the_lane_is_warm() -> None:
    host, client = StubHost(), FakeExecutorClient()
    served = ServedModel(SchedulerConfig(executors=("fake:1",), run_ahead_depth=1))
    lane = ExecutorLane(client, served, host)
    running = asyncio.create_task(lane.run())

    async def turn() -> None:
        async with asyncio.timeout(5.0):
            await host.woken.wait()
        host.woken.clear()
        lane.apply(host.now())
        lane.plan(host.now())

    await turn()
    lane.core.add(make_request("r", random_ids(1, 4), max_tokens=200), ())
    lane.plan(host.now())
    while lane.metrics.num_steps < WARM_STEPS:
        assert lane.deadline is None
        host.time += 0.01
        await turn()
    client.hold()
    while lane.deadline is None:
        await turn()
    host.time = lane.deadline - 0.001
    lane.apply(host.now())
    assert lane.state is LaneState.READY and len(client.streams) == 1
    assert lane.deadline - host.time < MIN_ALLOWANCE_S
    host.time += 0.002
    lane.apply(host.now())
    while len(client.streams) == 1:
        await turn()
    assert lane.metrics.num_overdue_steps == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_executor_that_is_never_there_keeps_the_loop_unready() -> None:
    client = FakeExecutorClient(is_down=True)
    async with engine(client, wait_ready=None) as harness:
        refused = harness.worker.submit(random_ids(1, 4))
        await harness.worker.until(lambda: refused.refused is not None)
        assert not harness.worker.readiness[-1].ready
        client.is_down = False
        await harness.worker.until(lambda: harness.worker.readiness[-1].ready)


async def test_an_executor_that_is_still_loading_is_asked_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its readiness is the stack's: a pause of seconds would be one of every start."""
    client, pauses = FakeExecutorClient(is_down=True), list[float]()
    served = ServedModel(SchedulerConfig(executors=("fake:1",)))

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        client.is_down = len(pauses) < 60

    monkeypatch.setattr("scheduler_service.engine.lane.asyncio.sleep", sleep)
    lane = ExecutorLane(client, served, host := StubHost())
    running = asyncio.create_task(lane.run())
    while lane.state is not LaneState.READY:
        await asyncio.wait_for(host.woken.wait(), 5.0)
        host.woken.clear()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert max(pauses) == AWAITED_S


async def test_an_executor_that_another_scheduler_owns_is_asked_again() -> None:
    client = FakeExecutorClient(owner_error="owned by another")
    async with engine(client, wait_ready=None) as harness:
        await client.until(lambda: len(client.hellos) >= 2)
        client.owner_error = ""
        await harness.worker.until(lambda: harness.worker.readiness[-1].ready)
