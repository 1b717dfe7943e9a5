"""The device thread over a runner that launches: who waits for what, and what comes out when."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from common.plan import StepPlan
from executor_service.rpc.queued_step import StreamToken
from tests.executor_service.rpc.test_device_thread import PATIENCE_S, Device, script
from tests.support.launching_runner import LaunchingRunner
from tests.support.shadow_executor import DeviceDiedError, ShadowExecutor


class LaunchingDevice(Device):
    runner: LaunchingRunner

    def next_launched(self) -> StepPlan:
        return self.runner.launched.get(timeout=PATIENCE_S)

    def nothing_came(self) -> bool:
        return self.done.empty()


@contextmanager
def started(runner: LaunchingRunner | None = None) -> Iterator[LaunchingDevice]:
    device = LaunchingDevice(runner or LaunchingRunner(ShadowExecutor(64, 16)))
    device.thread.start()
    assert device.ready.wait(PATIENCE_S)
    try:
        yield device
    finally:
        device.runner.permits.release(100)
        assert device.thread.stop(PATIENCE_S)


def test_a_step_is_launched_while_the_one_before_runs() -> None:
    with started() as device:
        steps, stream = script(), StreamToken()
        device.submit(steps.prompt(), stream)
        device.submit(steps.decode(), stream)
        assert [device.next_launched().step_id for _ in range(2)] == [1, 2]
        assert device.nothing_came()
        device.runner.permits.release()
        first = device.next_done()
        assert first.step.plan.step_id == 1
        assert device.nothing_came()
        assert first.result is not None
        steps.took(first.result)
        device.submit(steps.decode(), stream)
        assert device.next_launched().step_id == 3


def test_a_step_that_nothing_follows_is_delivered() -> None:
    with started() as device:
        device.submit(script().prompt(), StreamToken())
        device.next_launched()
        device.runner.permits.release()
        assert device.next_done().result is not None


def test_results_come_in_the_order_of_plans() -> None:
    with started() as device:
        steps, stream = script(), StreamToken()
        for _ in range(10):
            device.submit(steps.piece(), stream)
        device.runner.permits.release(10)
        done = [device.next_done() for _ in range(10)]
    assert [each.step.plan.step_id for each in done] == list(range(1, 11))


def test_only_a_plan_that_had_come_when_the_step_before_ended_was_ready() -> None:
    with started() as device:
        steps, stream = script(), StreamToken()
        device.submit(steps.prompt(), stream)
        device.submit(steps.decode(), stream)
        device.runner.permits.release(2)
        done = [device.next_done(), device.next_done()]
        assert done[0].result is not None
        steps.took(done[0].result)
        device.submit(steps.decode(), stream)
        device.runner.permits.release()
        done.append(device.next_done())
    # Whether the second had come before the first ended, nobody can say here: the queue was free.
    assert [each.result and each.result.plan_was_ready for each in done[::2]] == [False, False]
    assert [each.follows_step for each in done] == [False, True, True]


def test_a_gap_is_the_device_s_own_and_follows_a_step_of_the_stream() -> None:
    with started() as device:
        steps, stream = script(), StreamToken()
        device.submit(steps.prompt(), stream)
        device.submit(steps.decode(), stream)
        device.submit(script(9).prompt(), StreamToken())
        device.runner.permits.release(3)
        done = [device.next_done() for _ in range(3)]
    assert [each.result and each.result.timings.gap_ns for each in done] == [0, 5, 0]
    assert all(each.busy_ns >= 0 for each in done)
    assert device.runner.num_forgets == 2


def test_steps_launched_for_a_stream_that_ended_run_and_later_ones_do_not() -> None:
    with started() as device:
        steps, stream = script(), StreamToken()
        device.submit(steps.prompt(), stream)
        device.next_launched()
        stream.is_void = True
        device.submit(steps.decode(), stream)
        device.submit(script(9).prompt(), StreamToken())
        assert device.next_launched().step_id == 9
        assert device.next_done().result is None
        device.runner.permits.release(2)
        assert [device.next_done().step.plan.step_id for _ in range(2)] == [1, 9]


def test_a_fault_shown_by_a_result_is_reported_once_and_ends_the_work() -> None:
    runner = LaunchingRunner(ShadowExecutor(64, 16))
    runner.fault_of_step = {2: DeviceDiedError("shown by step 2")}
    with started(runner) as device:
        steps, stream = script(), StreamToken()
        for _ in range(3):
            device.submit(steps.piece(), stream)
        for _ in range(3):
            device.next_launched()
        runner.permits.release(3)
        assert "shown by step 2" in str(device.faults.get(timeout=PATIENCE_S))
        device.submit(steps.piece(), stream)
    assert device.done.qsize() == 1
    assert device.faults.empty()
    with pytest.raises(queue.Empty):
        runner.launched.get_nowait()


def test_a_fault_of_a_launch_is_reported_when_what_runs_is_delivered() -> None:
    with started(LaunchingRunner(ShadowExecutor(64, 16), die_after_steps=1)) as device:
        steps, stream = script(), StreamToken()
        device.submit(steps.prompt(), stream)
        device.submit(steps.decode(), stream)
        device.next_launched()
        device.runner.permits.release()
        assert "scripted" in str(device.faults.get(timeout=PATIENCE_S))
    assert device.done.qsize() == 1


def test_stopping_waits_for_steps_that_run() -> None:
    with started() as device:
        device.submit(script().prompt(), StreamToken())
        device.next_launched()
        assert not device.thread.stop(0.01)
        device.runner.permits.release()
        assert device.thread.stop(PATIENCE_S)
        assert device.next_done().result is not None
