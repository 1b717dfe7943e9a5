"""The kernels of sampling: penalties on logits, and the draw of a token from each row."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from executor_service.kernels.logit_adjust import Adjustments, adjust_logits
from executor_service.kernels.token_draw import DrawColumns, draw_tokens
from tests.bench.gpu.rates import Rates


def measure(rates: Rates) -> None:
    count = 256 if rates.card.is_gpu else 2
    logits = torch.randn(count, rates.shape.vocab_size, device=rates.card.device) * 3
    _adjust(rates, logits)
    _draw(rates, logits)


def _adjust(rates: Rates, logits: Tensor) -> None:
    """Of each entry: its token, its count, and the logit read and written."""
    count, seen = len(logits), 1024 if rates.card.is_gpu else 5
    adjustments = _penalties(count, seen, rates)
    run = partial(adjust_logits, logits.clone(), adjustments)
    rates.moves(f"logit_adjust, {count} rows, {seen} tokens each", count * seen * 16, run)


def _penalties(count: int, seen: int, rates: Rates) -> Adjustments:
    """A presence penalty, since a repetition penalty would shrink logits to nothing run by run."""
    chosen = torch.Generator().manual_seed(0)
    tokens = [torch.randperm(rates.shape.vocab_size, generator=chosen)[:seen] for _ in range(count)]

    def ints(values: Tensor) -> Tensor:
        return values.to(rates.card.device, torch.int32)

    def floats(value: float) -> Tensor:
        return torch.full((count,), value, device=rates.card.device)

    nothing, no_ends = ints(torch.zeros(1)), ints(torch.zeros(count + 1))
    return Adjustments(
        bias_ends=no_ends,
        bias_tokens=nothing,
        bias_values=floats(0.0),
        seen_ends=ints(torch.arange(count + 1) * seen),
        seen_tokens=ints(torch.cat(tokens)),
        seen_counts=ints(torch.ones(count * seen)),
        drawn=nothing,
        sources=ints(torch.full((count,), -1)),
        banned_ends=no_ends,
        banned_tokens=nothing,
        repetition=floats(1.0),
        presence=floats(1e-3),
        frequency=floats(0.0),
    )


def _draw(rates: Rates, logits: Tensor) -> None:
    """Logits are read at least once; a search for an edge reads them again, from cache."""
    count = len(logits)
    for rule, temperature, top_k, top_p in (
        ("greedy", 0.0, 0, 1.0),
        ("temperature", 0.8, 0, 1.0),
        ("top-k 50, top-p 0.9", 0.8, 50, 0.9),
    ):
        columns = _draw_columns(rates, count, temperature, top_k, top_p)
        run = partial(draw_tokens, logits, columns)
        rates.moves(f"draw {count} tokens, {rule}", logits.nbytes, run)


def _draw_columns(
    rates: Rates, count: int, temperature: float, top_k: int, top_p: float
) -> DrawColumns:
    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((count,), value, dtype=dtype, device=rates.card.device)

    seeds = torch.from_numpy(np.arange(count, dtype=np.int64)).to(rates.card.device)
    return DrawColumns(
        temperatures=column(temperature, torch.float32),
        top_k=column(top_k, torch.int32),
        top_p=column(top_p, torch.float64),
        min_p=column(0.0, torch.float32),
        seeds=seeds,
        positions=column(7, torch.int32),
        indexes=column(0, torch.int32),
    )
