"""Native steps beside torch's, turn by turn in one run: `python -m tests.bench.executor_step`.

Both serve the same plans of the same model. A step of 512 prompt tokens is the prefill; the others
decode one token of each sequence on 256 of context, greedily unless they say otherwise.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from common.plan import SamplingParams, StepPlan
from executor_service.config import ExecutorConfig
from executor_service.runner.load import load_runner
from executor_service.runner.model_runner import ModelRunner
from tests.bench.bench_executor import uniform_step
from tests.bench.clean_samples import Samples
from tests.support.plans import GREEDY

_SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=1)


CASES: list[tuple[str, int, StepPlan]] = [
    *((f"decode {n} at 256", n, uniform_step(n, 256, 1, GREEDY)) for n in (1, 4, 16, 32)),
    ("decode 32 at 256, sampled", 32, uniform_step(32, 256, 1, _SAMPLED)),
    ("decode 1 at 4096", 1, uniform_step(1, 4096, 1, GREEDY)),
    ("prefill 512", 512, uniform_step(1, 512, 512, GREEDY)),
]


def _runner(flags: argparse.Namespace, **fields: Any) -> ModelRunner:
    config = ExecutorConfig(model=flags.model, threads=flags.threads, num_blocks=640, **fields)
    return load_runner(config, lambda done, total, what: None)


def _torch_runner(flags: argparse.Namespace) -> ModelRunner:
    before = os.environ.get("OCTAVO_NATIVE")
    os.environ["OCTAVO_NATIVE"] = "0"
    try:
        return _runner(flags, dtype="float32")
    finally:
        del os.environ["OCTAVO_NATIVE"]
        if before is not None:
            os.environ["OCTAVO_NATIVE"] = before


def _measure(runners: dict[str, ModelRunner], plan: StepPlan, seconds: float) -> dict[str, Samples]:
    samples = {name: Samples() for name in runners}
    for runner in runners.values():
        assert not runner.execute(plan).errors
    ends = time.perf_counter() + seconds * len(runners)
    while time.perf_counter() < ends or min(s.count for s in samples.values()) < 3:
        for name, runner in runners.items():
            samples[name].take(lambda runner=runner: runner.execute(plan))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="per line and side")
    parser.add_argument("--native-only", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    flags = parser.parse_args()
    fields = dict(item.split("=", 1) for item in flags.set)
    runners = {"native": _runner(flags, **(fields or {"dtype": "float32"}))}
    if not flags.native_only:
        runners["torch"] = _torch_runner(flags)
    for name, num_tokens, plan in CASES:
        samples = _measure(runners, plan, flags.seconds)
        line = f"{name:28}"
        for side, found in samples.items():
            rate = num_tokens / found.typical * 1000
            line += f"  {side} {found} {rate:7.0f} tok/s"
        if len(samples) == 2:
            line += f"  x {samples['torch'].typical / samples['native'].typical:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
