"""The one thread on which the device works: it loads the model, then runs steps in arrival order.

Nothing else waits on the device. Steps of a stream that ended are dropped unless they run already;
as there is one queue, a new stream's first step starts only when the old one's last has stopped.
A fault outside of per-sequence errors leaves KV in doubt: it is reported once, and no further step
runs. The process is expected to end then; a new one is a new incarnation with an empty pool.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.plan import StepPlan, StepResult
from executor_service.rpc.runner_port import StepRunner


class StreamToken:
    """Identity of one stream, and whether its steps still count. Set by the event loop alone."""

    __slots__ = ("is_void",)

    def __init__(self) -> None:
        self.is_void = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueuedStep:
    plan: StepPlan
    stream: StreamToken
    decoded_ns: int
    """When the plan was ready to run, by time.perf_counter_ns."""
    deliver: Callable[[StepDone], None]
    """Called on the device thread with the result, or None in it when the step was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepDone:
    step: QueuedStep
    result: StepResult | None
    follows_step: bool = False
    """Another step of the same stream ran before it."""
    busy_ns: int = 0


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
