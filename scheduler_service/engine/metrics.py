"""What the loop counts. Plain numbers, as cheap as they can be; `exposition` names them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from common.plan import StepResult
from scheduler_service.core.counters import LiveKV
from scheduler_service.core.events import SequenceFinished
from scheduler_service.engine.histogram import (
    LATENCY_BUCKETS_S,
    SIZE_BUCKETS,
    STEP_BUCKETS_S,
    TOKEN_BUCKETS,
    WASTE_BUCKETS,
    Histogram,
)


def _latency() -> Histogram:
    return Histogram(LATENCY_BUCKETS_S)


def _step() -> Histogram:
    return Histogram(STEP_BUCKETS_S)


@dataclass(slots=True)
class RequestMetrics:
    """Over all executors. A choice of n counts as a request of its own where it ends."""

    num_prompt_tokens: int = 0
    """Of admitted requests, cached ones included."""
    num_generation_tokens: int = 0
    num_finished: Counter[str] = field(default_factory=Counter)
    """By finish reason."""
    num_refused: Counter[str] = field(default_factory=Counter)
    """By kind: invalid, queue_full, unavailable."""
    num_aborts: int = 0
    """Live requests ended by a client, or since their worker died."""
    queue_time_s: Histogram = field(default_factory=_latency)
    """Arrival to first admission."""
    first_token_s: Histogram = field(default_factory=_latency)
    """Arrival to first token."""
    inter_token_s: Histogram = field(default_factory=_latency)
    """Between two tokens of a choice, as the loop hands them out."""
    request_s: Histogram = field(default_factory=_latency)
    """Arrival to end."""
    output_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_BUCKETS))
    """Per finished choice."""

    def observe_finished(self, finished: SequenceFinished, took_s: float) -> None:
        self.num_finished[finished.reason.value] += 1
        self.request_s.observe(took_s)
        self.output_tokens.observe(finished.num_output_tokens)


@dataclass(slots=True)
class LaneMetrics:
    """Of one executor."""

    num_reconnects: int = 0
    num_overdue_steps: int = 0
    num_invalid_plans: int = 0
    num_steps: int = 0
    num_steps_ready: int = 0
    """Steps whose plan was decoded when the step before them ended."""
    plan_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_BUCKETS))
    plan_bytes: Histogram = field(default_factory=lambda: Histogram(SIZE_BUCKETS))
    gap_s: Histogram = field(default_factory=_step)
    """Device idle between two steps."""
    round_trip_s: Histogram = field(default_factory=_step)
    forward_s: Histogram = field(default_factory=_step)
    sample_s: Histogram = field(default_factory=_step)
    prepare_s: Histogram = field(default_factory=_step)
    kv_waste: Histogram = field(default_factory=lambda: Histogram(WASTE_BUCKETS))
    """Share of the allocated slots of live tables without a computed token, after each step."""

    def observe_plan(self, num_tokens: int, num_bytes: int) -> None:
        self.plan_tokens.observe(num_tokens)
        self.plan_bytes.observe(num_bytes)

    def observe_result(self, result: StepResult, round_trip_s: float) -> None:
        self.num_steps += 1
        self.num_steps_ready += result.plan_was_ready
        timings = result.timings
        self.round_trip_s.observe(round_trip_s)
        self.gap_s.observe(timings.gap_ns * 1e-9)
        self.prepare_s.observe(timings.prepare_ns * 1e-9)
        self.forward_s.observe(timings.forward_ns * 1e-9)
        self.sample_s.observe(timings.sample_ns * 1e-9)

    def observe_live_kv(self, live: LiveKV) -> None:
        """After each step; a step that left nobody running says nothing."""
        if live.num_slots:
            self.kv_waste.observe(live.waste)
