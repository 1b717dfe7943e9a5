"""What serving costs beside the executor's own steps: `python -m tests.bench.served`.

The same streams are decoded by an executor alone, step after step in this process, and by a whole
stack over HTTP, whose scheduler, API and client take their time from the same cores; in turn, as
machines change. Ratio: of the served tokens/s to those of the executor alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from common.plan import SamplingParams
from executor_service.config import ExecutorConfig
from executor_service.runner.load import load_runner
from executor_service.runner.model_runner import ModelRunner
from tests.bench.serving.peers.contestant import Run, WeightClass
from tests.bench.serving.peers.octavo_up import OctavoUp
from tests.bench.serving.timeline import measure
from tests.bench.serving.workloads import Ask, Workload
from tests.support.tiny_runner import Driver

_NUM_STREAMS = (1, 4, 16, 32)
_PROMPT, _OUTPUTS = 64, 128
_GREEDY = SamplingParams(temperature=0.0)


def _prompts(count: int) -> list[tuple[int, ...]]:
    rng = random.Random(count)
    return [tuple(rng.randrange(1000, 40000) for _ in range(_PROMPT)) for _ in range(count)]


def _alone(runner: ModelRunner, count: int) -> float:
    """Tokens/s once every stream decodes."""
    driver = Driver(runner)
    sequences = [driver.start(prompt, _GREEDY, _OUTPUTS) for prompt in _prompts(count)]
    for sequence in sequences:
        assert not driver.step([sequence], _PROMPT).errors
    started = time.perf_counter()
    for _ in range(_OUTPUTS - 1):
        assert not driver.step(sequences, 1).errors
    return count * (_OUTPUTS - 1) / (time.perf_counter() - started)


def _served(run: Run, count: int) -> float:
    """Likewise, from the time between tokens of the median stream."""
    asks = tuple(Ask(prompt=prompt, num_outputs=_OUTPUTS) for prompt in _prompts(count))
    outcome = run(Workload(name="streams", asks=asks, concurrency=count))
    return count / measure(outcome)["tpot_p50"] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    config = ExecutorConfig(
        model=flags.model, threads=flags.threads, dtype=flags.dtype, num_blocks=1024
    )
    runner = load_runner(config, lambda done, total, what: None)
    print("| streams | alone, tokens/s | served, tokens/s | ratio |")
    print("|---|---|---|---|")
    ours = OctavoUp(
        name="octavo",
        weight_class=WeightClass.QUANTIZED,
        model=flags.model,
        flags=(f"--dtype={flags.dtype}",),
    )
    with ours.started(flags.threads) as run:
        for count in _NUM_STREAMS:
            _alone(runner, count), _served(run, count)
            pairs = [(_alone(runner, count), _served(run, count)) for _ in range(flags.rounds)]
            alone, served = (statistics.median(rates) for rates in zip(*pairs, strict=True))
            ratios = [served / alone for alone, served in pairs]
            print(
                f"| {count} | {alone:.0f} | {served:.0f} | {statistics.median(ratios):.2f}"
                f" ({min(ratios):.2f}-{max(ratios):.2f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
