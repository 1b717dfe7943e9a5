"""What takes part in a comparison."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol

from tests.bench.serving.timeline import Outcome
from tests.bench.serving.workloads import Workload

Run = Callable[[Workload], Outcome]


class WeightClass(StrEnum):
    QUANTIZED = "quantized"
    FLOAT32 = "float32"


class Unavailable(Exception):
    """It is not installed or did not start; the message is the reason."""


class Contestant(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def weight_class(self) -> WeightClass: ...

    def started(self, threads: int) -> AbstractContextManager[Run]:
        """Ready within the block, gone after it. Raises Unavailable."""
