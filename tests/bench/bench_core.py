"""What the core costs per step: `python -m tests.bench.bench_core`.

Thread CPU time, so that neighbours on the machine count little; medians. The device is a loop that
answers every plan at once with token 7.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections import deque
from dataclasses import dataclass, field

from common.codec import PlanEncoder
from common.plan import StepPlan, StepResult
from scheduler_service.core.policy import Fcfs
from scheduler_service.core.scheduler import Scheduler
from tests.support.builders import make_limits, make_request, random_ids


@dataclass(slots=True)
class Timings:
    """Microseconds per step, by part."""

    schedule: list[float] = field(default_factory=list)
    apply: list[float] = field(default_factory=list)
    take_events: list[float] = field(default_factory=list)
    encode: list[float] = field(default_factory=list)
    plan_bytes: list[int] = field(default_factory=list)


def _us(since_ns: int) -> float:
    return (time.thread_time_ns() - since_ns) / 1000


def _answer(plan: StepPlan) -> StepResult:
    return StepResult(step_id=plan.step_id, tokens=array("i", [7]) * len(plan.sampled))


class Bench:
    def __init__(self, num_sequences: int, depth: int, prompt_len: int) -> None:
        self._limits = make_limits(
            num_blocks=num_sequences * 80,
            max_num_seqs=num_sequences,
            max_num_batched_tokens=8192,
            max_model_len=4096,
            depth=depth,
        )
        self._scheduler = Scheduler(self._limits, Fcfs())
        self._encoder = PlanEncoder(num_sequences)
        self._plans: deque[StepPlan] = deque()
        self.add_us: list[float] = []
        for i in range(num_sequences):
            request = make_request(f"r{i}", random_ids(i, prompt_len), max_tokens=1000)
            started = time.thread_time_ns()
            self._scheduler.add(request)
            self.add_us.append(_us(started))

    def step(self, timings: Timings) -> None:
        """One step as the loop takes it: apply the oldest result, then plan what may be planned."""
        if self._plans:
            result = _answer(self._plans.popleft())
            started = time.thread_time_ns()
            self._scheduler.apply(result)
            timings.apply.append(_us(started))
            started = time.thread_time_ns()
            self._scheduler.take_events()
            timings.take_events.append(_us(started))
        while True:
            started = time.thread_time_ns()
            plan = self._scheduler.schedule()
            if plan is None:
                return
            timings.schedule.append(_us(started))
            started = time.thread_time_ns()
            message = self._encoder.encode(plan, incarnation=1, epoch=1)
            timings.encode.append(_us(started))
            timings.plan_bytes.append(message.ByteSize())
            self._plans.append(plan)


def _report(name: str, values: list[float]) -> None:
    ordered = sorted(values)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(f"    {name:<12} median {statistics.median(values):8.1f} us   p99 {p99:8.1f} us")


def _run(num_sequences: int, depth: int, prompt_len: int, num_steps: int) -> None:
    bench, prefill, decode = Bench(num_sequences, depth, prompt_len), Timings(), Timings()
    while not prefill.plan_bytes or bench._scheduler.counters.num_waiting:
        bench.step(prefill)
    for _ in range(20):
        bench.step(prefill)
    for _ in range(num_steps):
        bench.step(decode)
    total = [
        a + b + c
        for a, b, c in zip(decode.schedule, decode.apply, decode.take_events, strict=False)
    ]
    print(f"depth {depth}: {num_sequences} sequences of {prompt_len} prompt tokens")
    _report("add", bench.add_us)
    print("  steps with prompts")
    _report("schedule", prefill.schedule)
    print(f"  {num_steps} decode steps, {statistics.median(decode.plan_bytes):.0f} bytes each")
    _report("schedule", decode.schedule)
    _report("apply", decode.apply)
    _report("take_events", decode.take_events)
    _report("core in all", total)
    _report("encode", decode.encode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-sequences", type=int, default=256)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--num-steps", type=int, default=400)
    args = parser.parse_args()
    for depth in (1, 2):
        _run(args.num_sequences, depth, args.prompt_len, args.num_steps)


if __name__ == "__main__":
    main()
