"""Linears of each kind over a small model's weights: `python -m tests.bench.linears`.

All layers' weights are gone through in turn, so they come from memory, not from a cache. Sides take
turns in one run, with oneDNN's float32 among them; the machine's limits are measured before.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from executor_service.kernels.backend import Backend, PackedWeight
from executor_service.kernels.cpu import CpuBackend
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.library import load
from executor_service.kernels.weight_rows import Blocks, Rows, WeightKind, WeightRule
from tests.bench.clean_samples import Samples
from tests.support.gguf_blocks import random_blocks

_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""[out_features, in_features] of a layer of SmolLM2-135M: qkv, output, gate and up, down."""
_NUM_LAYERS = 30
_TORCH = "oneDNN float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    backend: Backend
    weights: Sequence[PackedWeight]
    in_features: Sequence[int]
    num_bytes: int
    num_weights: int

    def run(self, inputs: dict[int, Tensor]) -> None:
        for weight, width in zip(self.weights, self.in_features, strict=True):
            self.backend.linear(inputs[width], weight, None)


def _torch_side() -> Side:
    return _side(CpuBackend(), WeightKind.FLOAT32)


def _native_side(kind: WeightKind, num_threads: int) -> Side:
    return _side(NativeBackend(load(), num_threads=num_threads), kind)


def _side(backend: Backend, kind: WeightKind) -> Side:
    """Rows are cut to whole blocks of the kind."""
    rule = WeightRule(kept=frozenset(WeightKind), floats=kind)
    shapes = [(n, k // kind.block_size * kind.block_size) for n, k in _SHAPES] * _NUM_LAYERS
    weights = []
    for n, k in shapes:
        rows: Rows = torch.randn(n, k)
        if kind not in (WeightKind.FLOAT32, WeightKind.INT8):
            data = torch.from_numpy(random_blocks(kind, n, k))
            rows = Blocks(kind=kind, out_features=n, in_features=k, data=data)
        weights.append(backend.prepare_weight([rows], rule))
    return Side(
        backend=backend,
        weights=weights,
        in_features=[k for _, k in shapes],
        num_bytes=sum(backend.weight_bytes(weight) for weight in weights),
        num_weights=sum(n * k for n, k in shapes),
    )


def _limits(seconds: float) -> None:
    memory, matrix = torch.ones(1 << 27), torch.randn(1536, 1536)
    reading = _measured({"": memory.sum}, seconds)[""].typical
    product = _measured({"": lambda: matrix @ matrix}, seconds)[""].typical
    print(f"limits: read {memory.numel() * 4 / reading / 1e6:.1f} GB/s", end=", ")
    print(f"float32 product {2 * 1536**3 / product / 1e6:.0f} GFLOP/s", flush=True)


def _measured(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, Samples]:
    samples = {name: Samples() for name in runs}
    ends = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < ends or min(found.count for found in samples.values()) < 3:
        for name, run in runs.items():
            samples[name].take(run)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 32, 512])
    parser.add_argument("--kinds", nargs="*", default=[kind.label for kind in WeightKind])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    torch.manual_seed(0)
    _limits(flags.seconds)
    sides = {_TORCH: _torch_side()}
    for label in flags.kinds:
        sides[label] = _native_side(WeightKind[label.upper()], flags.threads)
    widths = {k for side in sides.values() for k in side.in_features}
    for num_rows in flags.rows:
        inputs = {k: torch.randn(num_rows, k) for k in widths}
        runs = {name: partial(side.run, inputs) for name, side in sides.items()}
        found = _measured(runs, flags.seconds)
        per_weight = found[_TORCH].typical / sides[_TORCH].num_weights
        for name, side in sides.items():
            took = found[name].typical
            print(
                f"{num_rows:4} rows  {name:15}{found[name]}"
                f"  {side.num_bytes / took / 1e6:6.1f} GB/s"
                f"  {2 * num_rows * side.num_weights / took / 1e6:6.0f} GOP/s"
                f"  x {per_weight * side.num_weights / took:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
