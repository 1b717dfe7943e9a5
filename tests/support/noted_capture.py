"""Tells which sizes were captured, by whatever captures them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from executor_service.runner.cuda_graphs import Capture, Captured


class NotedCapture:
    """`Capture`. `sizes`: rows of each, in order."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.sizes: list[int] = []

    def __call__(self, compute: Callable[[], Tensor]) -> Captured:
        captured = self._capture(compute)
        self.sizes.append(len(captured.output))
        return captured
