"""Our side: a whole stack, started as `octavo up` starts it, asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.commands.server import own_server_config
from octavo.stack.background import running_stack
from octavo.stack.report import Reporter
from tests.bench.serving import sse_client
from tests.bench.serving.passes import Pass
from tests.bench.serving.timeline import Outcome
from tests.bench.serving.workloads import Workload


@dataclass(frozen=True, slots=True)
class OctavoSide:
    address: str

    def run(self, workload: Workload) -> Outcome:
        return asyncio.run(ask_afresh(self.address, workload))


async def ask_afresh(address: str, workload: Workload) -> Outcome:
    # Prompts of the last repeat must not be found in the prefix cache.
    await sse_client.post(address, "/reset_prefix_cache")
    return await Pass(functools.partial(sse_client.complete, address), workload).run()


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
