"""OpenVINO GenAI's continuous batching, in a process of its own Python (openvino_worker.py)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.serving.passes import ask_all
from tests.bench.serving.peers.contestant import Run, Unavailable, WeightClass
from tests.bench.serving.peers.server_process import ServerProcess
from tests.bench.serving.sse_client import ServerFailed
from tests.bench.serving.timeline import Timeline
from tests.bench.serving.workloads import Ask

WORKER = Path(__file__).with_name("openvino_worker.py")
PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVino:
    name: str
    weight_class: WeightClass
    python: Path
    model: Path
    properties: Mapping[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def started(self, threads: int) -> Iterator[Run]:
        if not self.model.exists():
            raise Unavailable(f"no exported model {self.model.name}")
        argv: list[str | Path] = [self.python, "-I", WORKER, self.model, str(threads)]
        with ServerProcess([*argv, json.dumps(dict(self.properties))]) as process:
            port = int(process.wait(lambda: process.said(r"listening (\d+)\."), PATIENCE_S))
            run = functools.partial(complete, port)
            yield functools.partial(ask_all, run)


async def complete(port: int, ask: Ask, timeline: Timeline) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = {"prompt": list(ask.prompt), "num_outputs": ask.num_outputs}
        writer.write(json.dumps(body).encode() + b"\n")
        while line := await reader.readline():
            event = json.loads(line)
            timeline.tokens += event["tokens"]
            timeline.arrivals += [event["at"]] * len(event["tokens"])
    finally:
        writer.close()
    if len(timeline.tokens) != ask.num_outputs:
        raise ServerFailed(f"{len(timeline.tokens)} tokens instead of {ask.num_outputs}")
