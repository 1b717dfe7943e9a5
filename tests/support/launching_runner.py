"""A runner whose steps are launched at once and end when a test says so."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, replace

from common.plan import StepPlan, StepResult
from tests.support.scripted_runner import ScriptedRunner


@dataclass(slots=True)
class HeldStep:
    """A launched step, held back until `permits` lets it go."""

    computed: StepResult
    permits: threading.Semaphore
    fault: BaseException | None = None

    def result(self) -> StepResult:
        self.permits.acquire()
        if self.fault is not None:
            raise self.fault
        return self.computed


class LaunchingRunner(ScriptedRunner):
    """Launched plans come out of `launched`; each step waits for one of `permits` to end."""

    def __init__(self, *args: object, **script: object) -> None:
        super().__init__(*args, **script)  # type: ignore[arg-type]
        self.launched: queue.SimpleQueue[StepPlan] = queue.SimpleQueue()
        self.permits = threading.Semaphore(0)
        self.fault_of_step: dict[int, BaseException] = {}
        self.gap_ns = 5

    def launch(self, plan: StepPlan) -> HeldStep:
        result = self.execute(plan)
        result.timings = replace(result.timings, gap_ns=self.gap_ns)
        self.launched.put(plan)
        return HeldStep(result, self.permits, self.fault_of_step.get(plan.step_id))
