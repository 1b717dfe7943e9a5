"""Stands for a device's memory: its figures are what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat

from common.kv_size import GIB
from executor_service.memory.gpu_memory import Memory


class ToldMeter:
    """`MemoryMeter`. `frees` are answered one after the other, then `free` for ever."""

    def __init__(
        self,
        *,
        free: int,
        total: int = 80 * GIB,
        frees: list[int] | None = None,
        peaks: list[int] | None = None,
    ) -> None:
        self._total = total
        self._frees: Iterator[int] = chain(frees or [], repeat(free))
        self._peaks: Iterator[int] = chain(peaks or [], repeat(0))
        self.num_runs = 0

    def read(self) -> Memory:
        return Memory(free=next(self._frees), total=self._total)

    def peak_of(self, run: Callable[[], object]) -> int:
        run()
        self.num_runs += 1
        return next(self._peaks)
