"""Decoding at long context against the machine's memory: `python -m tests.bench.long_context`.

A token reads every weight, and K and V of all positions before it, once. Its bound is how long a
plain sum of as many bytes takes on as many threads; both are timed in turn, as machines change.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from common.plan import StepPlan
from executor_service.config import ExecutorConfig
from executor_service.kernels.native import pages
from executor_service.runner.load import load_runner
from executor_service.runner.model_runner import ModelRunner
from tests.bench.bench_executor import BLOCK_SIZE, uniform_step
from tests.support.plans import GREEDY

_CONTEXTS = (128, 1000, 2000, 4000, 8000)


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Seconds."""

    step: float
    reading: float


def _timed(run: Callable[[], object], repeats: int) -> float:
    run()  # what it reads is then as far away as it will be
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - started) / repeats


def _pairs(
    runner: ModelRunner, plan: StepPlan, memory: Tensor, rounds: int, repeats: int
) -> list[Pair]:
    return [
        Pair(
            _timed(lambda: runner.execute(plan), repeats),
            _timed(memory.sum, repeats),
        )
        for _ in range(rounds)
    ]


def _line(context: int, num_bytes: int, pairs: list[Pair]) -> str:
    ratios = [pair.step / pair.reading for pair in pairs]
    step = statistics.median(pair.step for pair in pairs)
    reading = statistics.median(pair.reading for pair in pairs)
    return (
        f"| {context} | {num_bytes / 1e6:.0f} | {step * 1e3:.1f} | {reading * 1e3:.1f} |"
        f" {num_bytes / reading / 1e9:.0f} | {statistics.median(ratios):.2f}"
        f" ({min(ratios):.2f}-{max(ratios):.2f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=20, help="of either in a round")
    flags = parser.parse_args()
    config = ExecutorConfig(
        model=flags.model,
        threads=flags.threads,
        kv_cache_dtype=flags.kv_cache_dtype,
        num_blocks=_CONTEXTS[-1] // BLOCK_SIZE + 1,
    )
    runner = load_runner(config, lambda done, total, what: None)
    torch.set_num_threads(flags.threads)
    spec = runner.spec
    most = spec.weights_bytes + _CONTEXTS[-1] * spec.kv_bytes_per_token
    memory = pages.zeroed(most // 8 * 8).view(torch.int64).fill_(1)
    print(f"{flags.model}, {flags.threads} threads, KV in {spec.kv_cache_dtype}\n")
    print("| context | MB | a token, ms | a sum of these bytes, ms | GB/s | ratio |")
    print("|---|---|---|---|---|---|")
    for context in _CONTEXTS:
        plan = uniform_step(1, context, 1, GREEDY)
        assert not runner.execute(plan).errors
        num_bytes = spec.weights_bytes + context * spec.kv_bytes_per_token
        pairs = _pairs(runner, plan, memory[: num_bytes // 8], flags.rounds, flags.repeats)
        print(_line(context, num_bytes, pairs), flush=True)


if __name__ == "__main__":
    main()
