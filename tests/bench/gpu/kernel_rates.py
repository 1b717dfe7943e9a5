"""Each kernel over the card's own ceilings: bytes it has to move, or operations it has to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from executor_service.kernels.token_draw import DrawColumns, draw_tokens
from tests.bench.gpu.card import Card
from tests.bench.gpu.ceilings import Ceilings
from tests.bench.gpu.paged_inputs import paged_inputs
from tests.bench.gpu.rows import Rows
from tests.support.random_llama import LlamaShape


class KernelRates:
    """The kernels of one model's widths, beside decode attention, which has a section of its
    own."""

    def __init__(self, card: Card, shape: LlamaShape, ceilings: Ceilings, rows: Rows) -> None:
        self._card = card
        self._shape = shape
        self._ceilings = ceilings
        self._rows = rows
        self._num_tokens = 16_384 if card.is_gpu else 8

    def measure(self) -> None:
        self._row_wise()
        self._rotary_write()
        self._prefill()
        self._mixed()
        self._draw()

    def _row_wise(self) -> None:
        shape, tokens = self._shape, self._num_tokens
        backend = paged_inputs(self._card, shape, [(0, 1)]).backend
        make = partial(torch.randn, device=self._card.device, dtype=self._card.dtype)
        x, residual = make(tokens, shape.hidden_size), make(tokens, shape.hidden_size)
        weight = make(shape.hidden_size)
        self._moves(
            "add_rms_norm", 4 * x.nbytes, lambda: backend.add_rms_norm(x, residual, weight, 1e-5)
        )
        gate_up = make(tokens, 2 * shape.intermediate_size)
        self._moves("silu_mul", gate_up.nbytes * 3 // 2, lambda: backend.silu_mul(gate_up))

    def _rotary_write(self) -> None:
        inputs = paged_inputs(self._card, self._shape, [(0, self._num_tokens // 4)] * 4)
        angles = sum(part.nbytes for part in inputs.angles)
        num_bytes = 2 * (inputs.qk.nbytes + inputs.v.nbytes) + angles
        self._moves("rotary and KV write", num_bytes, inputs.rotary_write)

    def _prefill(self) -> None:
        """Whole prompts, and chunks on top of a context."""
        length, context = (2048, 6144) if self._card.is_gpu else (16, 16)
        shape = self._shape
        for case, chunks in (
            (f"prefill attention, 4 x {length}", [(0, length)] * 4),
            (f"prefill attention, {length} on {context}", [(context, length)]),
        ):
            inputs = paged_inputs(self._card, shape, chunks)
            pairs = sum(n * start + n * (n + 1) // 2 for start, n in chunks)
            flops = 4 * pairs * shape.num_heads * shape.head_dim
            rate = flops / self._card.seconds(inputs.attend)
            self._against(case, "operations", rate / 1e12, "TFLOP/s", "matmul")

    def _mixed(self) -> None:
        """Decodes with a chunk of a prompt: their one launch, and one for each kind in turn."""
        decodes, context, length = (64, 2048, 448) if self._card.is_gpu else (2, 16, 16)
        case = f"{self._shape.name}: mixed attention, {decodes} x {context} with {length} new"
        chunks = [(context - 1, 1)] * decodes + [(0, length)]
        both = paged_inputs(self._card, self._shape, chunks)
        kinds = [
            dataclasses.replace(both, step=dataclasses.replace(both.step, **{kind: None}))
            for kind in ("tiles", "decodes")
        ]

        def in_turn() -> None:
            for kind in kinds:
                kind.attend()

        ours, theirs = (self._card.seconds(run) * 1e6 for run in (both.attend, in_turn))
        self._rows.add(case, "time", ours, "us")
        self._rows.compare(case, "time", ours, "us", peer="two launches", theirs=theirs)

    def _draw(self) -> None:
        """Logits are read at least once; a search for an edge reads them again, from cache."""
        count = 256 if self._card.is_gpu else 2
        logits = torch.randn(count, self._shape.vocab_size, device=self._card.device) * 3
        for rule, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0),
            ("temperature", 0.8, 0, 1.0),
            ("top-k 50, top-p 0.9", 0.8, 50, 0.9),
        ):
            columns = self._draw_columns(count, temperature, top_k, top_p)
            run = partial(draw_tokens, logits, columns)
            self._moves(f"draw {count} tokens, {rule}", logits.nbytes, run)

    def _draw_columns(
        self, count: int, temperature: float, top_k: int, top_p: float
    ) -> DrawColumns:
        def column(value: float, dtype: torch.dtype) -> torch.Tensor:
            return torch.full((count,), value, dtype=dtype, device=self._card.device)

        seeds = torch.from_numpy(np.arange(count, dtype=np.int64)).to(self._card.device)
        return DrawColumns(
            temperatures=column(temperature, torch.float32),
            top_k=column(top_k, torch.int32),
            top_p=column(top_p, torch.float64),
            min_p=column(0.0, torch.float32),
            seeds=seeds,
            positions=column(7, torch.int32),
            indexes=column(0, torch.int32),
        )

    def _moves(self, kernel: str, num_bytes: int, run: Callable[[], object]) -> None:
        rate = num_bytes / self._card.seconds(run)
        self._against(kernel, "bytes moved", rate / 1e9, "GB/s", "copy")

    def _against(self, kernel: str, metric: str, rate: float, unit: str, ceiling: str) -> None:
        limits = {
            "copy": self._ceilings.copy_bytes_s / 1e9,
            "matmul": self._ceilings.matmul_flop_s / 1e12,
        }
        case, limit = f"{self._shape.name}: {kernel}", limits[ceiling]
        self._rows.add(case, metric, rate, unit)
        self._rows.compare(case, metric, rate, unit, peer=ceiling, theirs=limit)
