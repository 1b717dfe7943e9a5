"""One workload asked of a server that streams, by as many clients as its concurrency says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.bench.serving.timeline import Outcome, Timeline
from tests.bench.serving.workloads import Ask, Interruption, Workload

PATIENCE_S = 900.0
"""For one pass. The slowest takes a minute of a quiet machine."""

Complete = Callable[[Ask, Timeline], Awaitable[None]]
"""Asks one request and fills its timeline as tokens come."""


class Pass:
    def __init__(self, complete: Complete, workload: Workload) -> None:
        self._complete = complete
        self._workload = workload
        self._answers: dict[int, Timeline] = {}
        self._waiting = list(enumerate(workload.asks))[::-1]

    async def run(self) -> Outcome:
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
            await self._complete(ask, timeline)

    async def _interrupt(self, interruption: Interruption) -> Timeline:
        while not self._all_have(interruption.after_outputs):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.002)
        timeline = Timeline(time.perf_counter())
        await self._complete(interruption.ask, timeline)
        return timeline

    def _all_have(self, num_outputs: int) -> bool:
        num_ready = sum(len(a.tokens) >= num_outputs for a in self._answers.values())
        return num_ready == len(self._workload.asks)


def ask_all(complete: Complete, workload: Workload) -> Outcome:
    """A pass from start to end; TimeoutError if the server hangs."""

    async def run() -> Outcome:
        async with asyncio.timeout(PATIENCE_S):
            return await Pass(complete, workload).run()

    return asyncio.run(run())
