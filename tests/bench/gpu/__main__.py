"""Prints a row a figure, heaviest sections last; `--json` keeps them."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.bench.gpu import (
    ceilings,
    decode_attention,
    kernel_rates,
    pool_rates,
    sampling_rates,
)
from tests.bench.gpu.card import Card, gpu, tiny
from tests.bench.gpu.rates import Rates
from tests.bench.gpu.rows import Rows
from tests.support.random_llama import SHAPES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=220.0, help="the peer may take until then")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="each section in a tiny size on the CPU; set TRITON_INTERPRET=1",
    )
    flags = parser.parse_args()
    if flags.tiny and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("--tiny needs TRITON_INTERPRET=1 in the environment")
    if not flags.tiny and not torch.cuda.is_available():
        parser.error("torch sees no GPU")
    card, rows = (tiny() if flags.tiny else gpu()), Rows(flags.json, flags.seconds)
    began = time.perf_counter()
    rows.say(f"{card.name}, torch {torch.__version__}, {card.dtype}")
    with torch.inference_mode():
        found = ceilings.measure(card, rows)
        wide = SHAPES["tiny" if flags.tiny else "1B"]
        rates = Rates(card, wide, found, rows)
        for section in (kernel_rates, sampling_rates, pool_rates):
            section.measure(rates)
        decode_attention.measure(card, wide, found, rows)
    if card.is_gpu:
        torch.cuda.empty_cache()
    measure_serving(card, ("tiny",) if flags.tiny else ("135M", "1B"), rows)
    rows.say(f"{len(rows.records)} figures in {time.perf_counter() - began:.0f} s")
    return 0


def measure_serving(card: Card, shapes: Sequence[str], rows: Rows) -> None:
    """Alone it needs protobuf, of which and of grpcio the generated code wants a recent version."""
    try:
        from tests.bench.gpu import serving
    except (ImportError, RuntimeError) as error:
        rows.say(f"serving was left out: {error}")
        return
    rows.say(serving.MEASURED)
    for name in shapes:
        serving.measure(card, SHAPES[name], rows)


if __name__ == "__main__":
    raise SystemExit(main())
