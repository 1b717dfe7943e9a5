"""The kernels of a forward pass over the card's own ceilings.

Decode attention has a section of its own, and so have pools of other kinds and sampling.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import torch

from tests.bench.gpu.paged_inputs import paged_inputs
from tests.bench.gpu.rates import Rates


def measure(rates: Rates) -> None:
    _row_wise(rates)
    _rotary_write(rates)
    _prefill(rates)
    _mixed(rates)


def num_tokens(rates: Rates) -> int:
    return 16_384 if rates.card.is_gpu else 8


def _row_wise(rates: Rates) -> None:
    shape, tokens = rates.shape, num_tokens(rates)
    backend = paged_inputs(rates.card, shape, [(0, 1)]).backend
    make = partial(torch.randn, device=rates.card.device, dtype=rates.card.dtype)
    x, residual = make(tokens, shape.hidden_size), make(tokens, shape.hidden_size)
    weight = make(shape.hidden_size)
    rates.moves("rms_norm", 2 * x.nbytes, lambda: backend.rms_norm(x, weight, 1e-5))
    rates.moves(
        "add_rms_norm", 4 * x.nbytes, lambda: backend.add_rms_norm(x, residual, weight, 1e-5)
    )
    gate_up = make(tokens, 2 * shape.intermediate_size)
    rates.moves("silu_mul", gate_up.nbytes * 3 // 2, lambda: backend.silu_mul(gate_up))


def _rotary_write(rates: Rates) -> None:
    inputs = paged_inputs(rates.card, rates.shape, [(0, num_tokens(rates) // 4)] * 4)
    rates.moves("rotary and KV write", inputs.rotary_write_bytes, inputs.rotary_write)


def _prefill(rates: Rates) -> None:
    """Whole prompts, and chunks on top of a context."""
    length, context = (2048, 6144) if rates.card.is_gpu else (16, 16)
    shape = rates.shape
    for case, chunks in (
        (f"prefill attention, 4 x {length}", [(0, length)] * 4),
        (f"prefill attention, {length} on {context}", [(context, length)]),
    ):
        inputs = paged_inputs(rates.card, shape, chunks)
        pairs = sum(n * start + n * (n + 1) // 2 for start, n in chunks)
        rates.computes(case, 4 * pairs * shape.num_heads * shape.head_dim, inputs.attend)


def _mixed(rates: Rates) -> None:
    """Decodes with a chunk of a prompt: their one launch, and one for each kind in turn."""
    card, shape = rates.card, rates.shape
    decodes, context, length = (64, 2048, 448) if card.is_gpu else (2, 16, 16)
    case = f"{shape.name}: mixed attention, {decodes} x {context} with {length} new"
    chunks = [(context - 1, 1)] * decodes + [(0, length)]
    both = paged_inputs(card, shape, chunks)
    kinds = [
        dataclasses.replace(both, step=dataclasses.replace(both.step, **{kind: None}))
        for kind in ("tiles", "decodes")
    ]

    def in_turn() -> None:
        for kind in kinds:
            kind.attend()

    ours, theirs = (card.seconds(run) * 1e6 for run in (both.attend, in_turn))
    rates.rows.add(case, "time", ours, "us")
    rates.rows.compare(case, "time", ours, "us", peer="two launches", theirs=theirs)
