"""What this process counted since it started, for GetInfo and /metrics."""

from __future__ import annotations

from common.plan import StepPlan
from executor_service.rpc.queued_step import StepDone


class ExecutorCounters:
    """Written on the event loop's thread; whole numbers may be read from any."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_decode_steps = 0
        """Plans of decodes alone that followed another step of their stream."""
        self.num_decode_steps_ready = 0
        """Of those, plans that were decoded when the step before them ended."""
        self.num_computed_tokens = 0
        self.num_sampled_tokens = 0
        self.num_sequence_errors = 0
        self.num_streams = 0
        self.num_resyncs = 0
        self.num_void_steps = 0
        """Dropped before they ran, or run for a stream that had ended."""
        self.plan_bytes = 0

    def step_done(self, done: StepDone) -> None:
        """Counts a step, delivered or not."""
        if done.result is None:
            self.num_void_steps += 1
            return
        plan = done.step.plan
        self.num_steps += 1
        self.num_computed_tokens += plan.num_tokens
        self.num_sampled_tokens += len(done.result.tokens)
        self.num_sequence_errors += len(done.result.errors)
        if done.step.stream.is_void:
            self.num_void_steps += 1
        if done.follows_step and _is_decode(plan):
            self.num_decode_steps += 1
            self.num_decode_steps_ready += done.result.plan_was_ready


def _is_decode(plan: StepPlan) -> bool:
    return plan.num_chunks > 0 and plan.num_decodes == plan.num_chunks
