"""A step that was put into the device's stream, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from common.plan import SequenceId, StepPlan, StepResult, StepTimings
from executor_service.kernels.device_stream import Mark
from executor_service.kernels.transfers import Arrival
from executor_service.runner.device_sampler import answers
from executor_service.runner.draw_task import DrawTask
from executor_service.runner.step_answers import StepAnswers
from executor_service.runner.validate import LastSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a launch leaves to be waited for."""

    plan: StepPlan
    answers: StepAnswers
    """What is known of it already."""
    tasks: Sequence[tuple[int, DrawTask]]
    """Each with its index in the plan's `sampled`."""
    in_flight: Sequence[int]
    """Chunks of the plan whose input the step before samples for their sequence."""
    arrival: Arrival
    """Of what `launch_draws` returned and raw logits, or of nothing without tasks."""
    prepare_ns: int
    began: Mark
    forwarded: Mark


class LaunchedStep:
    """Its result may be waited for on any thread, and be asked for on several."""

    def __init__(
        self,
        launched: Launched,
        tokens: Tensor | None,
        known: LastSamples,
        before: LaunchedStep | None,
    ) -> None:
        self.tokens = tokens
        """[num_tasks] int32 on the device; None without tasks."""
        self.known = known
        """As far as the launch told: indexes into `tokens`, and who failed before it."""
        self.done = launched.arrival.mark
        self._launched = launched
        self._before = before
        self._lock = threading.Lock()
        self._ended: tuple[StepResult, LastSamples] | None = None

    def result(self) -> StepResult:
        """Waits for the device."""
        return self._end()[0]

    def outcome(self) -> LastSamples:
        """Likewise. Tokens and failures as the next step's check wants them."""
        return self._end()[1]

    def _end(self) -> tuple[StepResult, LastSamples]:
        with self._lock:
            if self._ended is None:
                self._ended = self._read()
                self._before = None  # or every step would hold all that were before it
            return self._ended

    def _read(self) -> tuple[StepResult, LastSamples]:
        launched, found = self._launched, self._launched.answers
        arrived = launched.arrival.read()
        failed = self._before.outcome().failed if self._before is not None else {}
        for chunk in launched.in_flight if failed else ():
            code = failed.get(launched.plan.sequences[chunk].sequence_id)
            if code is not None:
                for sequence_id in concerned(launched.plan, chunk):
                    found.fail(sequence_id, code, "its input failed in the step before")
        if arrived:
            raw_rows = list(arrived[1]) if len(arrived) > 1 else []
            tasks = [task for _, task in launched.tasks]
            indexes = [index for index, _ in launched.tasks]
            found.put(zip(indexes, answers(arrived[0], tasks, raw_rows), strict=True))
        return found.result(self._timings()), found.outcome()

    def _timings(self) -> StepTimings:
        """The device's own, and of the launch what the device waited for."""
        launched = self._launched
        gap_ns, prepare_ns = 0, launched.prepare_ns
        if self._before is not None:
            gap_ns = max(0, launched.began.ns_since(self._before.done))
            prepare_ns = min(prepare_ns, gap_ns)
        return StepTimings(
            prepare_ns=prepare_ns,
            forward_ns=launched.forwarded.ns_since(launched.began),
            sample_ns=self.done.ns_since(launched.forwarded),
            gap_ns=gap_ns,
        )


def concerned(plan: StepPlan, chunk: int) -> list[SequenceId]:
    """The chunk's sequence and all that sample from it."""
    first = sum(plan.num_samples[:chunk])
    sampled = plan.sampled[first : first + plan.num_samples[chunk]]
    return [plan.sequences[chunk].sequence_id, *(spec.sequence_id for spec in sampled)]
