"""Steps on a device that is run ahead of: the next is launched while the one before runs.

    device thread:  take -> launch, take -> launch, ...
    results thread:         wait -> deliver, wait -> deliver, ...

The device thread never waits for a step's end, so a plan that has come by then is in the device's
stream before the step before it ends. Answers are waited for on a thread of their own, which spends
its time outside of Python. Results are delivered in the order of their plans.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from executor_service.rpc.queued_step import QueuedStep, StepDone, StreamToken
from executor_service.rpc.runner_port import PendingStep, RunAheadRunner

Steps = queue.SimpleQueue[QueuedStep | None]
"""None ends the thread that takes from it."""


def run_ahead(runner: RunAheadRunner, steps: Steps) -> None:
    """Until None comes. Raises the first fault of a launch or of a step; no step is launched or
    delivered after it."""
    # A fault of the device shows where its answers are waited for: this wakes who takes steps.
    results = _Results(lambda: steps.put(None))
    try:
        _launch_steps(runner, steps, results)
    finally:
        results.finish()
    if results.fault is not None:
        raise results.fault


def _launch_steps(runner: RunAheadRunner, steps: Steps, results: _Results) -> None:
    stream: StreamToken | None = None
    while (step := steps.get()) is not None and results.fault is None:
        if step.stream.is_void:
            step.deliver(StepDone(step=step, result=None))
            continue
        follows = step.stream is stream
        if not follows:
            runner.forget_samples()
            stream = step.stream
        started_ns = time.perf_counter_ns()
        pending = runner.launch(step.plan)
        results.add(
            _LaunchedStep(step=step, pending=pending, follows=follows, started_ns=started_ns)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LaunchedStep:
    step: QueuedStep
    pending: PendingStep
    follows: bool
    started_ns: int
    """When its launch began, by time.perf_counter_ns."""


class _Results:
    """The results thread."""

    def __init__(self, on_fault: Callable[[], None]) -> None:
        self.fault: BaseException | None = None
        self._on_fault = on_fault
        self._launched: queue.SimpleQueue[_LaunchedStep | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)
        self._thread.start()

    def add(self, launched: _LaunchedStep) -> None:
        self._launched.put(launched)

    def finish(self) -> None:
        """Returns when all that was added is delivered, or a fault was met."""
        self._launched.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._deliver_all()
        except BaseException as fault:  # noqa: BLE001 - the device thread raises it
            self.fault = fault
            self._on_fault()

    def _deliver_all(self) -> None:
        ended_ns = 0
        while (launched := self._launched.get()) is not None:
            result = launched.pending.result()
            before_ns, ended_ns = ended_ns, time.perf_counter_ns()
            step, started_ns = launched.step, launched.started_ns
            result.plan_was_ready = launched.follows and step.decoded_ns <= before_ns
            # The gap is the device's own: the host cannot see how long that had nothing to do.
            result.timings = replace(
                result.timings,
                queue_ns=max(0, started_ns - step.decoded_ns),
                gap_ns=result.timings.gap_ns if launched.follows else 0,
            )
            step.deliver(
                StepDone(
                    step=step,
                    result=result,
                    follows_step=launched.follows,
                    busy_ns=ended_ns - max(started_ns, before_ns),
                )
            )
