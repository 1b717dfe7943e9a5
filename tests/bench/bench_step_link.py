"""What the link between scheduler and executor costs per step, without a model.

    python -m tests.bench.bench_step_link [--num-sequences 256] [--step-ms 5] [--seconds 5]

One process serves the real service over a device that only waits; another plans decodes for all
sequences, one step at a time or one ahead, and counts round trips, gaps and plans that were ready.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import grpc

from common.codec import PlanEncoder, decode_result
from common.config import option, parse
from common.grpc_server import Link, channel_options
from common.plan import StepPlan, StepResult
from common.process import ChildProcess
from common.protocol import PROTOCOL_VERSION
from executor_service import app
from executor_service.config import ExecutorConfig
from proto import executor_pb2, executor_pb2_grpc
from tests.common.histories import History, decode_plan
from tests.support.scripted_runner import ScriptedSpec

MAX_STEPS_PER_S = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingConfig(ExecutorConfig):
    model: str = option("waiting", help="name of the model")
    step_ms: float = option(5.0, help="time of each step")
    busy_ms: float = option(0.0, help="further time per step in which the device runs Python")


class WaitingRunner:
    """Waits instead of computing; every token is 1."""

    def __init__(self, config: WaitingConfig) -> None:
        self.spec = ScriptedSpec(fingerprint="none", max_rows=2 * config.max_num_seqs)
        self.model_files: dict[str, bytes] = {}
        self._step_s = config.step_ms / 1000
        self._busy_s = config.busy_ms / 1000

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self._step_s)
        end = time.perf_counter() + self._busy_s
        while time.perf_counter() < end:
            pass
        return StepResult(step_id=plan.step_id, tokens=array("i", [1]) * len(plan.sampled))

    def forget_samples(self) -> None:
        pass


def serve(argv: list[str]) -> int:
    config = parse(WaitingConfig, argv, prog="waiting executor")

    def load(_: Callable[[int, int, str], None]) -> WaitingRunner:
        return WaitingRunner(config)

    return app.run_with(config, load)


async def drive(address: str, num_sequences: int, depth: int, seconds: float) -> None:
    async with grpc.aio.insecure_channel(address, options=channel_options(Link.INTERNAL)) as link:
        stub = executor_pb2_grpc.ExecutorStub(link)
        hello = await stub.Hello(
            executor_pb2.HelloRequest(scheduler_id="bench", protocol_version=PROTOCOL_VERSION)
        )
        before = await stub.GetInfo(executor_pb2.GetInfoRequest())
        call = stub.Execute()
        history = History(1, max_live=num_sequences)
        batch = [history.add(num_tokens=100 + i % 16) for i in range(num_sequences)]
        encode = partial(
            PlanEncoder(hello.max_rows).encode, incarnation=hello.incarnation, epoch=hello.epoch
        )
        # Made beforehand: planning is not what is measured. Views keep earlier plans as they were.
        plans = [decode_plan(history, batch) for _ in range(int(seconds * MAX_STEPS_PER_S))]
        plans.reverse()
        sent: list[float] = []
        trips, gaps = [], []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and plans:
            while len(sent) < depth and plans:
                message = encode(plans.pop())
                sent.append(time.perf_counter())
                await call.write(message)
            result = decode_result(await call.read())
            trips.append(time.perf_counter() - sent.pop(0))
            gaps.append(result.timings.gap_ns / 1e3)
        after = await stub.GetInfo(executor_pb2.GetInfoRequest())
        call.cancel()
    steps = after.num_decode_steps - before.num_decode_steps
    ready = after.num_decode_steps_ready - before.num_decode_steps_ready
    gaps.sort()
    print(
        f"depth {depth}: {len(trips) / seconds:6.1f} steps/s"
        f"   round trip p50 {statistics.median(trips) * 1e3:6.2f} ms"
        f"   gap p50 {statistics.median(gaps):6.0f} us p99 {gaps[len(gaps) * 99 // 100]:6.0f} us"
        f"   ready {ready / max(1, steps):6.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-sequences", type=int, default=256)
    parser.add_argument("--step-ms", default="5")
    parser.add_argument("--busy-ms", default="0")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    child = ChildProcess.start(
        "executor",
        [
            *(sys.executable, "-m", "tests.bench.bench_step_link", "serve", "--port=0"),
            f"--step-ms={arguments.step_ms}",
            f"--busy-ms={arguments.busy_ms}",
            "--log-level=error",
        ],
    )
    address = ""
    for event in child.events():
        if event["event"] == "listening":
            address = event["addresses"]["grpc"]
        if event["event"] == "ready":
            break
    try:
        for depth in (1, 2):
            asyncio.run(drive(address, arguments.num_sequences, depth, arguments.seconds))
    finally:
        child.stop(10)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(sys.argv[2:]))
    main()
