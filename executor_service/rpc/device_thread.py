"""The one thread on which the device works: it loads the model, then runs steps in arrival order.

Nothing else waits on the device, but for the answers of one that is run ahead of (`run_ahead`).
Steps of a stream that ended are dropped unless they run already, or were launched; as there is one
queue, a new stream's first step starts only when the old one's last has stopped.
A fault outside of per-sequence errors leaves KV in doubt: it is reported once, and no further step
runs. The process is expected to end then; a new one is a new incarnation with an empty pool.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from executor_service.rpc.queued_step import QueuedStep, StepDone, StreamToken
from executor_service.rpc.run_ahead import run_ahead
from executor_service.rpc.runner_port import RunAheadRunner, StepRunner


class DeviceThread:
    """`on_ready` and `on_fault` are called on the device thread."""

    def __init__(
        self,
        load: Callable[[], StepRunner],
        *,
        on_ready: Callable[[StepRunner], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._load = load
        self._on_ready = on_ready
        self._on_fault = on_fault
        self._steps: queue.SimpleQueue[QueuedStep | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, step: QueuedStep) -> None:
        """Queues the step. Never waits."""
        self._steps.put(step)

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after the steps queued so far; False if it does not end in time."""
        self._steps.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            runner = self._load()
            self._on_ready(runner)
            if isinstance(runner, RunAheadRunner):
                run_ahead(runner, self._steps)
            else:
                self._run_steps(runner)
        except BaseException as fault:  # noqa: BLE001 - whatever it is, the owner of the thread decides
            self._on_fault(fault)

    def _run_steps(self, runner: StepRunner) -> None:
        stream: StreamToken | None = None
        ended_ns = 0
        while (step := self._steps.get()) is not None:
            if step.stream.is_void:
                step.deliver(StepDone(step=step, result=None))
                continue
            follows = step.stream is stream
            if not follows:
                runner.forget_samples()
                stream = step.stream
            started_ns = time.perf_counter_ns()
            result = runner.execute(step.plan)
            before_ns, ended_ns = ended_ns, time.perf_counter_ns()
            result.plan_was_ready = follows and step.decoded_ns <= before_ns
            result.timings = replace(
                result.timings,
                queue_ns=max(0, started_ns - step.decoded_ns),
                gap_ns=started_ns - before_ns if follows else 0,
            )
            step.deliver(
                StepDone(
                    step=step,
                    result=result,
                    follows_step=follows,
                    busy_ns=ended_ns - started_ns,
                )
            )
