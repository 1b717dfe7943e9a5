"""Stands for CUDA graphs where there is no GPU: a replay runs the same computation again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class RecordedComputation:
    compute: Callable[[], Tensor]
    output: Tensor
    """One tensor for good, as a graph's output has one address."""
    num_replays: int = 0

    def replay(self) -> None:
        self.num_replays += 1
        self.output.copy_(self.compute())


@dataclass(slots=True)
class RecordingCapture:
    """`Capture`. `recorded` holds what was captured, in order."""

    recorded: list[RecordedComputation] = field(default_factory=list)

    def __call__(self, compute: Callable[[], Tensor]) -> RecordedComputation:
        self.recorded.append(RecordedComputation(compute, compute()))
        return self.recorded[-1]
