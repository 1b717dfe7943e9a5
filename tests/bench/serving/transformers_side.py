"""The peer: HF transformers' `generate()` with its KV cache, in static batches, in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from tests.bench.serving.static_batches import Batch, issue, length_sorted
from tests.bench.serving.timeline import Outcome, Timeline
from tests.bench.serving.workloads import Ask, Workload

PAD_ID = 0


class TransformersSide:
    """Counts each token as delivered at the end of its step, though `generate` has no stream."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def run(self, workload: Workload, batch_size: int) -> Outcome:
        began_at = time.perf_counter()
        answers = [Timeline(began_at) for _ in workload.asks]
        batches = length_sorted(workload.asks, batch_size)
        for batch in batches:
            self._generate(workload.asks, batch, answers)
        issue(answers, batches, workload.concurrency)
        late = None
        if workload.interruption is not None:
            after = workload.interruption.after_outputs
            late = Timeline(max(answer.arrivals[after - 1] for answer in answers))
            self._generate([workload.interruption.ask], [0], [late])
        return Outcome(answers=answers, late=late)

    @torch.inference_mode()
    def _generate(self, asks: Sequence[Ask], batch: Batch, answers: Sequence[Timeline]) -> None:
        """Runs until the longest of the batch ends; what others get beyond their end is dropped."""
        width = max(len(asks[index].prompt) for index in batch)
        padding = [width - len(asks[index].prompt) for index in batch]
        rows = [
            [PAD_ID] * pad + list(asks[i].prompt) for pad, i in zip(padding, batch, strict=True)
        ]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        clock = _StepClock(len(batch))
        output = self._model.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            max_new_tokens=max(asks[index].num_outputs for index in batch),
            do_sample=False,
            use_cache=True,
            eos_token_id=None,
            pad_token_id=PAD_ID,
            stopping_criteria=[clock],
        )
        for row, index in enumerate(batch):
            count = asks[index].num_outputs
            answers[index].arrivals = clock.times[:count]
            answers[index].tokens = output[row, width : width + count].tolist()


class _StepClock:
    """A stopping criterion that never stops and notes when it was asked: after each step."""

    def __init__(self, num_rows: int) -> None:
        self.times: list[float] = []
        self._go_on = torch.zeros(num_rows, dtype=torch.bool)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return self._go_on
