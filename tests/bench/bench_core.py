"""What core, codec and step loop cost per step: `make bench-core [JSON=FILE]`.

Thread CPU time, so that neighbours on the machine count little; medians. The device is a loop that
answers every plan at once with token 7. Fails if the core takes longer than it may.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from common.codec import PlanDecoder, PlanEncoder, decode_result, encode_result
from common.plan import StepPlan, StepResult
from proto import executor_pb2
from scheduler_service.core.policy import Fcfs
from scheduler_service.core.scheduler import Scheduler
from tests.bench import bench_engine_loop
from tests.bench.records import Record, print_records, write_records
from tests.support.builders import make_limits, make_request, random_ids

T = TypeVar("T")

CORE_PARTS = ("schedule", "apply", "take_events")
CODEC_PARTS = ("encode plan", "decode plan", "encode result", "decode result")
MAX_CORE_US = 1000.0
NUM_LOOP_STEPS = 200


class Stopwatch:
    """Thread CPU time in microseconds, by part."""

    def __init__(self) -> None:
        self.times_us: dict[str, list[float]] = defaultdict(list)

    def time(self, part: str, work: Callable[[], T]) -> T:
        began_ns = time.thread_time_ns()
        result = work()
        self.times_us[part].append((time.thread_time_ns() - began_ns) / 1000)
        return result

    def median(self, part: str) -> float:
        return statistics.median(self.times_us[part])


class Bench:
    """A core, both ends of the codec, and `num_sequences` requests."""

    def __init__(self, num_sequences: int, depth: int, prompt_len: int) -> None:
        limits = make_limits(
            num_blocks=num_sequences * 80,
            max_num_seqs=num_sequences,
            max_num_batched_tokens=8192,
            max_model_len=4096,
            depth=depth,
        )
        self._scheduler = Scheduler(limits, Fcfs())
        self._encoder = PlanEncoder(num_sequences)
        self._decoder = PlanDecoder(num_sequences, incarnation=1, epoch=1)
        self._plans: deque[StepPlan] = deque()
        self.plan_bytes: list[int] = []
        for i in range(num_sequences):
            prompt = random_ids(i, prompt_len)
            self._scheduler.add(make_request(f"r{i}", prompt, max_tokens=1000))

    @property
    def has_prompts(self) -> bool:
        """Whether any sequence has not sampled yet."""
        return any(s.num_output_tokens == 0 for s in self._scheduler.state.sequences.values())

    def step(self, watch: Stopwatch) -> None:
        """One step as the loop takes it: apply the oldest result, then plan what may be planned."""
        scheduler = self._scheduler
        if self._plans:
            result = self._carry_result(_answer(self._plans.popleft()), watch)
            watch.time("apply", lambda: scheduler.apply(result))
            watch.time("take_events", scheduler.take_events)
        while (plan := watch.time("schedule", scheduler.schedule)) is not None:
            self._carry_plan(plan, watch)
            self._plans.append(plan)
        watch.times_us["schedule"].pop()  # the call that found the depth reached

    def _carry_plan(self, plan: StepPlan, watch: Stopwatch) -> None:
        def encode() -> bytes:
            return self._encoder.encode(plan, incarnation=1, epoch=1).SerializeToString()

        def decode() -> StepPlan:
            return self._decoder.decode(executor_pb2.StepMessage.FromString(data))

        data = watch.time("encode plan", encode)
        self.plan_bytes.append(len(data))
        watch.time("decode plan", decode)

    def _carry_result(self, result: StepResult, watch: Stopwatch) -> StepResult:
        def encode() -> bytes:
            return encode_result(result, incarnation=1, epoch=1).SerializeToString()

        def decode() -> StepResult:
            return decode_result(executor_pb2.StepResult.FromString(data))

        data = watch.time("encode result", encode)
        return watch.time("decode result", decode)


def _answer(plan: StepPlan) -> StepResult:
    return StepResult(step_id=plan.step_id, tokens=array("i", [7]) * len(plan.sampled))


def measure(
    num_sequences: int, depth: int, *, prompt_len: int = 128, num_steps: int = 400
) -> list[Record]:
    """Steps in which every sequence decodes."""
    bench, prompts, decodes = Bench(num_sequences, depth, prompt_len), Stopwatch(), Stopwatch()
    while bench.has_prompts:
        bench.step(prompts)
    bench.plan_bytes.clear()
    for _ in range(num_steps):
        bench.step(decodes)
    return list(_records(f"{num_sequences} decodes, depth {depth}", bench, decodes))


def _records(case: str, bench: Bench, watch: Stopwatch) -> Iterator[Record]:
    whole = [sum(parts) for parts in zip(*(watch.times_us[p] for p in CORE_PARTS), strict=True)]
    yield Record(case=case, metric="core", value=statistics.median(whole), unit="us/step")
    for part in (*CORE_PARTS, *CODEC_PARTS):
        yield Record(case=case, metric=part, value=watch.median(part), unit="us/step")
    size = statistics.median(bench.plan_bytes)
    yield Record(case=case, metric="plan", value=size, unit="bytes/step")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_core", description=__doc__)
    parser.add_argument("--num-sequences", type=int, default=256, metavar="N")
    parser.add_argument("--num-steps", type=int, default=400, metavar="N")
    parser.add_argument("--max-core-us", type=float, default=MAX_CORE_US, metavar="X")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    records: list[Record] = []
    for depth in (1, 2):
        records += measure(arguments.num_sequences, depth, num_steps=arguments.num_steps)
    loop = asyncio.run(bench_engine_loop.measure(arguments.num_sequences, NUM_LOOP_STEPS))
    records += loop.records()
    print_records("CPU time per step, medians", records)
    if arguments.json is not None:
        write_records(arguments.json, records)
    worst = max(record.value for record in records if record.metric == "core")
    if worst > arguments.max_core_us:
        print(
            f"the core takes {worst:.0f} us a step; {arguments.max_core_us:.0f} are allowed",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
