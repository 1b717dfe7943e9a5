"""A kernel's rate over the card's own: bytes it has to move, or operations it has to do."""

from __future__ import annotations

from collections.abc import Callable

from tests.bench.gpu.card import Card
from tests.bench.gpu.ceilings import Ceilings
from tests.bench.gpu.rows import Rows
from tests.support.random_llama import LlamaShape


class Rates:
    """Of kernels at one model's widths."""

    def __init__(self, card: Card, shape: LlamaShape, ceilings: Ceilings, rows: Rows) -> None:
        self.card = card
        self.shape = shape
        self.rows = rows
        self._ceilings = ceilings

    def at(self, shape: LlamaShape) -> Rates:
        """At other widths."""
        return Rates(self.card, shape, self._ceilings, self.rows)

    def moves(self, kernel: str, num_bytes: float, run: Callable[[], object]) -> None:
        rate = num_bytes / self.card.seconds(run) / 1e9
        self._against(
            kernel, "bytes moved", rate, "GB/s", "copy", self._ceilings.copy_bytes_s / 1e9
        )

    def computes(self, kernel: str, num_operations: float, run: Callable[[], object]) -> None:
        rate = num_operations / self.card.seconds(run) / 1e12
        ceiling = self._ceilings.matmul_flop_s / 1e12
        self._against(kernel, "operations", rate, "TFLOP/s", "matmul", ceiling)

    def _against(
        self, kernel: str, metric: str, rate: float, unit: str, ceiling: str, limit: float
    ) -> None:
        case = f"{self.shape.name}: {kernel}"
        self.rows.add(case, metric, rate, unit)
        self.rows.compare(case, metric, rate, unit, peer=ceiling, theirs=limit)
