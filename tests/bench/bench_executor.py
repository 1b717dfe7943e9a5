"""What the executor costs per step on a real model: `python -m tests.bench.bench_executor`.

Behind a step's own time stand its medians before the forward pass and after it: checks and layout,
and drawing the tokens.

Wall time counts only where this process waited less than 5% of it for a core, as neighbours on
the machine otherwise decide the figure; without such a sample the least is shown in brackets.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Callable

from common.plan import SamplingParams, StepPlan, StepResult, StepTimings
from executor_service.config import ExecutorConfig
from executor_service.runner.load import load_runner
from executor_service.runner.model_runner import ModelRunner
from tests.bench.clean_samples import Samples
from tests.support.plans import GREEDY, add_chunk, make_spec

BLOCK_SIZE = 16


def _measured(run: Callable[[], StepResult], seconds: float) -> str:
    run()
    samples, timings, ends = Samples(), list[StepTimings](), time.perf_counter() + seconds
    while time.perf_counter() < ends or samples.count < 3:
        samples.take(lambda: timings.append(run().timings))
    prepare = statistics.median(each.prepare_ns for each in timings) / 1e6
    sample = statistics.median(each.sample_ns for each in timings) / 1e6
    return f"{samples!s:36} prepare {prepare:5.2f} ms  sample {sample:5.2f} ms"


def uniform_step(
    num_sequences: int, context: int, length: int, params: SamplingParams, shared: int = 0
) -> StepPlan:
    """Each sequence computes its last `length` tokens of `context` and samples.

    shared: positions, whole blocks, that all begin with.
    """
    plan = StepPlan(step_id=0)
    common = shared // BLOCK_SIZE
    own = -(-context // BLOCK_SIZE) - common
    for i in range(num_sequences):
        spec = make_spec(i + 1, context - length, params=params)
        tokens = array("i", [(7 * position + i) % 40000 + 100 for position in range(context)])
        table = [*range(common), *range(common + i * own, common + (i + 1) * own)]
        add_chunk(plan, spec, tokens, table, start=context - length, length=length, samples=[spec])
    return plan


def _cases() -> list[tuple[str, StepPlan]]:
    sampled = SamplingParams(temperature=0.8, seed=1)
    nucleus = SamplingParams(temperature=0.8, top_p=0.9, seed=1)
    both = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1)
    return [
        ("decode, 1 sequence at 256", uniform_step(1, 256, 1, GREEDY)),
        ("decode, 4 sequences at 256", uniform_step(4, 256, 1, GREEDY)),
        ("decode, 16 sequences at 256", uniform_step(16, 256, 1, GREEDY)),
        ("decode, 32 sequences at 256", uniform_step(32, 256, 1, GREEDY)),
        ("decode, 8 sequences at 580", uniform_step(8, 580, 1, GREEDY)),
        ("decode, 8 at 580, 512 shared", uniform_step(8, 580, 1, GREEDY, shared=512)),
        ("decode, 16 at 256, temperature", uniform_step(16, 256, 1, sampled)),
        ("decode, 16 at 256, top-p", uniform_step(16, 256, 1, nucleus)),
        ("decode, 32 at 256, temperature", uniform_step(32, 256, 1, sampled)),
        ("decode, 32 at 256, top-p", uniform_step(32, 256, 1, nucleus)),
        ("decode, 32 at 256, top-k, top-p", uniform_step(32, 256, 1, both)),
        ("decode, 1 sequence at 4096", uniform_step(1, 4096, 1, GREEDY)),
        ("prefill, 64 tokens on 448", uniform_step(1, 512, 64, GREEDY)),
        ("prefill, 512 tokens", uniform_step(1, 512, 512, GREEDY)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="per line")
    flags = parser.parse_args()
    started, cpu = time.perf_counter(), time.process_time()
    config = ExecutorConfig(model=flags.model, threads=flags.threads, num_blocks=640)
    runner: ModelRunner = load_runner(config, lambda done, total, what: None)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    print(f"{'load and warm up':34} {wall:8.1f} s   ({cpu:.1f} s of CPU, imports not counted)")
    for name, plan in _cases():
        assert not runner.execute(plan).errors
        print(f"{name:34} {_measured(lambda plan=plan: runner.execute(plan), flags.seconds)}")


if __name__ == "__main__":
    main()
