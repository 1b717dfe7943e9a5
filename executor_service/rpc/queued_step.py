"""One plan on its way through the device thread, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.plan import StepPlan, StepResult


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
