from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from common.plan import StepPlan
from executor_service.rpc.counters import ExecutorCounters
from executor_service.rpc.device_thread import DeviceThread
from executor_service.rpc.queued_step import QueuedStep, StepDone, StreamToken
from tests.common.histories import History
from tests.executor_service.rpc.harness import Script
from tests.support.scripted_runner import ScriptedRunner
from tests.support.shadow_executor import ShadowExecutor

PATIENCE_S = 30.0


class Device:
    def __init__(self, runner: ScriptedRunner) -> None:
        self.runner = runner
        self.ready = threading.Event()
        self.faults: queue.Queue[BaseException] = queue.Queue()
        self.done: queue.Queue[StepDone] = queue.Queue()
        self.thread = DeviceThread(
            lambda: runner, on_ready=lambda _: self.ready.set(), on_fault=self.faults.put
        )

    def submit(self, plan: StepPlan, stream: StreamToken) -> None:
        self.thread.submit(
            QueuedStep(
                plan=plan,
                stream=stream,
                decoded_ns=time.perf_counter_ns(),
                deliver=self.done.put,
            )
        )

    def next_done(self) -> StepDone:
        return self.done.get(timeout=PATIENCE_S)


@contextmanager
def started(**script: float) -> Iterator[Device]:
    device = Device(ScriptedRunner(ShadowExecutor(64, 16), **script))  # type: ignore[arg-type]
    device.thread.start()
    assert device.ready.wait(PATIENCE_S)
    try:
        yield device
    finally:
        device.runner.gate.set()
        assert device.thread.stop(PATIENCE_S)


def script(first_step: int = 1) -> Script:
    return Script(History(first_step, max_live=1).add(num_tokens=20), first_step=first_step)


def test_steps_run_in_the_order_of_submission() -> None:
    with started() as device:
        steps, stream = script(), StreamToken()
        for _ in range(10):
            device.submit(steps.piece(), stream)
        done = [device.next_done() for _ in range(10)]
    assert [each.step.plan.step_id for each in done] == list(range(1, 11))


def test_only_a_plan_that_waited_when_the_step_before_ended_was_ready() -> None:
    with started() as device:
        steps, stream = script(), StreamToken()
        device.runner.gate.clear()
        device.submit(steps.prompt(), stream)
        device.submit(steps.decode(), stream)
        device.runner.gate.set()
        first, second = device.next_done(), device.next_done()
        assert first.result is not None
        steps.took(first.result)
        device.submit(steps.decode(), stream)
        third = device.next_done()
    assert [each.result and each.result.plan_was_ready for each in (first, second, third)] == [
        False,
        True,
        False,
    ]
    assert third.result is not None
    assert third.result.timings.gap_ns > 0


def test_first_step_of_a_stream_follows_nothing() -> None:
    with started() as device:
        device.submit(script(1).prompt(), StreamToken())
        device.submit(script(7).prompt(), StreamToken())
        done = [device.next_done(), device.next_done()]
        assert not any(each.follows_step for each in done)
        assert all(each.result and each.result.timings.gap_ns == 0 for each in done)
        assert device.runner.num_forgets == 2


def test_steps_of_a_void_stream_are_dropped_unless_they_run() -> None:
    with started() as device:
        steps, stream, other = script(), StreamToken(), StreamToken()
        device.runner.gate.clear()
        device.submit(steps.prompt(), stream)
        device.submit(steps.decode(), stream)
        assert device.runner.started.wait(PATIENCE_S)
        stream.is_void = True
        device.submit(script(9).prompt(), other)
        device.runner.gate.set()
        done = [device.next_done() for _ in range(3)]
    assert [each.result is None for each in done] == [False, True, False]
    assert [plan.step_id for plan in device.runner.plans] == [1, 9]


def test_timings_are_durations_of_queueing_and_running() -> None:
    with started(latency_s=0.05) as device:
        steps, stream = script(), StreamToken()
        device.submit(steps.prompt(), stream)
        device.submit(steps.decode(), stream)
        first, second = device.next_done(), device.next_done()
    assert first.result is not None
    assert second.result is not None
    assert first.busy_ns >= 50e6
    assert second.result.timings.queue_ns >= 49e6
    assert 0 <= second.result.timings.gap_ns < 50e6


def test_fault_of_loading_is_reported() -> None:
    device = Device(ScriptedRunner(ShadowExecutor(64, 16)))

    def load() -> ScriptedRunner:
        raise OSError("no such file")

    thread = DeviceThread(load, on_ready=lambda _: None, on_fault=device.faults.put)
    thread.start()
    assert "no such file" in str(device.faults.get(timeout=PATIENCE_S))
    assert thread.stop(PATIENCE_S)


def test_no_step_runs_after_a_fault() -> None:
    with started(die_after_steps=1) as device:
        steps, stream = script(), StreamToken()
        for plan in (steps.prompt(), steps.decode(), steps.decode()):
            device.submit(plan, stream)
        assert "scripted" in str(device.faults.get(timeout=PATIENCE_S))
    assert len(device.runner.plans) == 2
    assert device.done.qsize() == 1


def test_counters_tell_decodes_ready_and_void_steps_apart() -> None:
    counters = ExecutorCounters()
    with started() as device:
        steps, stream = script(), StreamToken()
        device.runner.gate.clear()
        device.submit(steps.prompt(), stream)
        device.submit(steps.decode(), stream)
        device.runner.gate.set()
        done = [device.next_done(), device.next_done()]
        assert done[0].result is not None
        steps.took(done[0].result)
        device.submit(steps.decode(), stream)
        for each in done:
            counters.step_done(each)
        last = device.next_done()
        stream.is_void = True
        counters.step_done(last)
    assert counters.num_steps == 3
    assert counters.num_decode_steps == 2
    assert counters.num_decode_steps_ready == 1
    assert counters.num_void_steps == 1
    assert counters.num_computed_tokens == 22
    assert counters.num_sampled_tokens == 3
