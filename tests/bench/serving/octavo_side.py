"""Our side: a whole stack, started as `octavo up` starts it, asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.commands.server import own_server_config
from octavo.stack.background import running_stack
from octavo.stack.report import Reporter
from tests.bench.serving import sse_client
from tests.bench.serving.timeline import Outcome, Timeline
from tests.bench.serving.workloads import Ask, Interruption, Workload


@dataclass(frozen=True, slots=True)
class OctavoSide:
    address: str

    def run(self, workload: Workload) -> Outcome:
        return asyncio.run(Pass(self.address, workload).run())


@contextlib.contextmanager
def started(model: str, threads: int) -> Iterator[OctavoSide]:
    flags = [f"--model={model}", "--dtype=float32", f"--threads={threads}"]
    # Room for every workload, and none for what earlier repeats would leave behind.
    flags += ["--num-blocks=1024", "--max-num-seqs=32"]
    reporter = Reporter()
    try:
        with running_stack(own_server_config(flags), reporter) as addresses:
            yield OctavoSide(addresses.http)
    finally:
        reporter.close()


class Pass:
    """One workload, by as many clients as its concurrency says."""

    def __init__(self, address: str, workload: Workload) -> None:
        self._address = address
        self._workload = workload
        self._answers: dict[int, Timeline] = {}
        self._waiting = list(enumerate(workload.asks))[::-1]

    async def run(self) -> Outcome:
        # Prompts of the last repeat must not be found in the prefix cache.
        await sse_client.post(self._address, "/reset_prefix_cache")
        workload = self._workload
        async with asyncio.TaskGroup() as group:
            for _ in range(workload.concurrency):
                group.create_task(self._client())
            late = None
            if workload.interruption is not None:
                late = group.create_task(self._interrupt(workload.interruption))
        answers = [self._answers[index] for index in range(len(workload.asks))]
        return Outcome(answers=answers, late=late.result() if late else None)

    async def _client(self) -> None:
        while self._waiting:
            index, ask = self._waiting.pop()
            self._answers[index] = timeline = Timeline(time.perf_counter())
            await sse_client.complete(self._address, ask, timeline)

    async def _interrupt(self, interruption: Interruption) -> Timeline:
        while not self._all_have(interruption.after_outputs):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.002)
        return await self._ask(interruption.ask)

    async def _ask(self, ask: Ask) -> Timeline:
        timeline = Timeline(time.perf_counter())
        await sse_client.complete(self._address, ask, timeline)
        return timeline

    def _all_have(self, num_outputs: int) -> bool:
        num_ready = sum(len(a.tokens) >= num_outputs for a in self._answers.values())
        return num_ready == len(self._workload.asks)
