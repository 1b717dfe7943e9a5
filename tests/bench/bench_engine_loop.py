"""What one step costs the step loop: `python -m tests.bench.bench_engine_loop [sequences] [steps]`.

The executor answers at once and computes nothing; plans and results pass through the codec as on
the wire. One worker's outputs are built, encoded and dropped. What is left is the loop: commands,
core, codec, events, metrics and outputs. Depth 1, so that a round is one step.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from array import array
from collections.abc import AsyncIterator

import msgspec

from common.codec import PlanEncoder, decode_result, encode_result
from common.plan import StepPlan, StepResult
from proto import executor_pb2
from scheduler_service.engine.executor_client import ExecutorInfo, StepStream
from scheduler_service.engine.loop import EngineLoop
from tests.bench.records import Record, print_records
from tests.support.builders import random_ids
from tests.support.engine_harness import CONFIG, RecordingWorker
from tests.support.fake_executor_client import FakeExecutorClient


class InstantClient(FakeExecutorClient):
    def open_stream(self, info: ExecutorInfo) -> StepStream:
        return InstantStream(info)


class InstantStream:
    """Answers every plan with token 7."""

    def __init__(self, info: ExecutorInfo) -> None:
        self._encoder = PlanEncoder(info.max_rows)
        self._results: asyncio.Queue[bytes] = asyncio.Queue()

    def send(self, plan: StepPlan) -> int:
        message = self._encoder.encode(plan, incarnation=1, epoch=1).SerializeToString()
        result = StepResult(step_id=plan.step_id, tokens=array("i", [7] * len(plan.sampled)))
        reply = encode_result(result, incarnation=1, epoch=1)
        self._results.put_nowait(reply.SerializeToString())
        return len(message)

    async def results(self) -> AsyncIterator[StepResult]:
        while True:
            yield decode_result(executor_pb2.StepResult.FromString(await self._results.get()))

    def cancel(self) -> None:
        pass


class EncodingWorker(RecordingWorker):
    """Encodes what it is given, as a link does, and drops it."""

    num_bytes = 0
    num_finished = 0
    encoder = msgspec.msgpack.Encoder()

    def flush(self) -> None:
        for update in self.outbox.take():
            self.num_bytes += len(self.encoder.encode(update))
            self.num_finished += len(getattr(update, "finished", ()))
        self._turned.set()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopCost:
    num_sequences: int
    num_steps: int
    wall_s: float
    cpu_s: float
    num_bytes: int
    """Written to the worker."""

    def records(self) -> list[Record]:
        case = f"step loop with codec, {self.num_sequences} decodes, depth 1"
        figures = (
            ("cpu", self.cpu_s * 1e6, "us/step"),
            ("wall", self.wall_s * 1e6, "us/step"),
            ("to the worker", self.num_bytes, "bytes/step"),
        )
        return [
            Record(case=case, metric=metric, value=total / self.num_steps, unit=unit)
            for metric, total, unit in figures
        ]


async def measure(num_sequences: int, num_steps: int) -> LoopCost:
    """`num_sequences` requests of 16 tokens with `num_steps` outputs each, prompts included."""
    config = dataclasses.replace(
        CONFIG,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=8192,
        run_ahead_depth=1,
        check_invariants=False,
    )
    client = InstantClient(
        num_blocks=num_sequences * (num_steps // 16 + 3), block_size=16, max_rows=2 * num_sequences
    )
    loop = EngineLoop(config, [client])
    running = asyncio.create_task(loop.run())
    worker = EncodingWorker(loop, running)
    loop.worker_joined(worker)
    await loop.ready.wait()
    for i in range(num_sequences):
        worker.submit(random_ids(i, 16), max_tokens=num_steps)
    started_at, started_cpu = time.perf_counter(), time.process_time()
    await worker.until(lambda: worker.num_finished == num_sequences)
    cost = LoopCost(
        num_sequences=num_sequences,
        num_steps=loop.lanes[0].metrics.num_steps,
        wall_s=time.perf_counter() - started_at,
        cpu_s=time.process_time() - started_cpu,
        num_bytes=worker.num_bytes,
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return cost


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    found = asyncio.run(measure(*(arguments + [64, 500][len(arguments) :])))
    print_records("The step loop, CPU and wall time per step", found.records())
