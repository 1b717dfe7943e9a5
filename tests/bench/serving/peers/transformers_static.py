"""HF transformers' `generate()` in static batches, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.bench.serving.peers.contestant import Run, WeightClass
from tests.bench.serving.static_batches import batch_sizes
from tests.bench.serving.timeline import Outcome, measure
from tests.bench.serving.transformers_side import TransformersSide
from tests.bench.serving.workloads import Workload
from tests.integration.reference.hf_model import load_float32


@dataclass(slots=True, kw_only=True)
class TransformersStatic:
    name: str
    weight_class: WeightClass
    gguf: Path
    sizes: dict[str, int] = field(default_factory=dict)
    """Best batch size by workload, as the first pass over it found."""

    @contextlib.contextmanager
    def started(self, threads: int) -> Iterator[Run]:
        torch.set_num_threads(threads)
        side = TransformersSide(load_float32(self.gguf))
        yield lambda workload: self._run(side, workload)

    def _run(self, side: TransformersSide, workload: Workload) -> Outcome:
        if workload.interruption is not None:
            return side.run(workload, workload.concurrency)
        if workload.name in self.sizes:
            return side.run(workload, self.sizes[workload.name])
        tries = {size: side.run(workload, size) for size in batch_sizes(workload.concurrency)}
        best = max(tries, key=lambda size: measure(tries[size])["output_rate"])
        self.sizes[workload.name] = best
        return tries[best]
