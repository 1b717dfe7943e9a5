"""The peer: transformers' continuous batching on the same card and weights."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.gpu.card import Card
from tests.support.random_llama import LlamaShape, transformers_model


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigures:
    tokens_s: float
    ttft_s: float | None
    """Median; None where this version notes no times."""
    tpot_s: float | None
    tokens: list[list[int]]
    """Of each prompt, in their order."""


class TransformersPeer:
    def __init__(self, card: Card, shape: LlamaShape) -> None:
        self._model: Any = transformers_model(shape, 0, card.device, card.dtype, "sdpa")
        # On a card it sizes itself; on a CPU it would take half of the machine's memory.
        self._options = {} if card.is_gpu else {"continuous_batching_config": _small()}

    def run(self, prompts: Sequence[Sequence[int]], num_outputs: int) -> PeerFigures:
        """All prompts at once, greedy. Warm-up is transformers' own, before the clock starts: it
        happens within the call, so the clock is that of the requests."""
        from transformers import GenerationConfig

        outputs = self._model.generate_batch(
            inputs=[list(prompt) for prompt in prompts],
            generation_config=GenerationConfig(
                max_new_tokens=num_outputs, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            record_timestamps=True,
            **self._options,
        )
        ended = time.perf_counter()
        found = list(outputs.values())
        if len(found) != len(prompts) or any(o.error is not None for o in found):
            raise RuntimeError(f"{[o.error for o in found]}")
        began = min(output.created_time for output in found)
        last = max((o.timestamps[-1] for o in found if o.timestamps), default=ended)
        num_tokens = sum(len(output.generated_tokens) for output in found)
        return PeerFigures(
            tokens_s=num_tokens / (last - began),
            ttft_s=_median([o.timestamps[0] - began for o in found if o.timestamps]),
            tpot_s=_median(
                [
                    (o.timestamps[-1] - o.timestamps[0]) / (len(o.timestamps) - 1)
                    for o in found
                    if o.timestamps and len(o.timestamps) > 1
                ]
            ),
            tokens=[list(output.generated_tokens) for output in found],
        )


def _small() -> Any:
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    return ContinuousBatchingConfig(num_blocks=8, page_size=16, max_batch_tokens=64)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
