"""What the card itself can do: the figures that kernels are held against."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.bench.gpu.card import Card
from tests.bench.gpu.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    copy_bytes_s: float
    """Read and written, both counted."""
    matmul_flop_s: float


def measure(card: Card, rows: Rows) -> Ceilings:
    """Copy of 2 GiB; a square product in the card's dtype."""
    copy, flops = _copy_bytes_s(card), _matmul_flop_s(card)
    case = f"ceilings of {card.name}"
    rows.add(case, "copy", copy / 1e9, "GB/s")
    rows.add(case, "matmul", flops / 1e12, "TFLOP/s")
    return Ceilings(copy_bytes_s=copy, matmul_flop_s=flops)


def _copy_bytes_s(card: Card) -> float:
    num_bytes = 1 << 31 if card.is_gpu else 1 << 16
    source = torch.empty(num_bytes, dtype=torch.uint8, device=card.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / card.seconds(lambda: target.copy_(source))


def _matmul_flop_s(card: Card) -> float:
    side = 8192 if card.is_gpu else 64
    a = torch.randn(side, side, device=card.device, dtype=card.dtype)
    b = torch.randn(side, side, device=card.device, dtype=card.dtype)
    return float(2 * side**3 / card.seconds(lambda: a @ b))
