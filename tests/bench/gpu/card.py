"""What is measured on: a GPU in full size, or the CPU in a tiny one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_SAMPLES = 5
_SECONDS_OF_A_SAMPLE = 0.01
_MOST_RUNS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    device: torch.device
    dtype: torch.dtype
    name: str

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def seconds(self, run: Callable[[], object]) -> float:
        """Median time of one run, as the device's own clock has it; the first is not counted."""
        run()
        if not self.is_gpu:
            began = time.perf_counter()
            run()
            return time.perf_counter() - began
        once = self._timed(run, 1)
        runs = max(1, min(_MOST_RUNS, int(_SECONDS_OF_A_SAMPLE / max(once, 1e-6))))
        return statistics.median(self._timed(run, runs) for _ in range(_SAMPLES))

    def _timed(self, run: Callable[[], object], runs: int) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(runs):
            run()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3 / runs


def gpu() -> Card:
    return Card(
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        name=torch.cuda.get_device_name(),
    )


def tiny() -> Card:
    """float32: Triton's interpreter multiplies bfloat16 as integers."""
    return Card(device=torch.device("cpu"), dtype=torch.float32, name="CPU, interpreted")
