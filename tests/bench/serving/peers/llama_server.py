"""llama.cpp's server, one GGUF file each, over its own /completion, which takes token ids."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.serving import sse_client
from tests.bench.serving.passes import ask_all
from tests.bench.serving.peers.contestant import Run, Unavailable, WeightClass
from tests.bench.serving.peers.server_process import ServerProcess, answers, free_port
from tests.bench.serving.sse_client import ServerFailed
from tests.bench.serving.timeline import Timeline
from tests.bench.serving.workloads import Ask

PATIENCE_S = 120.0
NUM_SLOTS = 16
"""Requests at a time of the widest workload."""
SLOT_TOKENS = 2048
"""Of one request: the longest prompt with its outputs, and no more than it can use."""
BATCH_TOKENS = 512
"""What it computes at once anyway; by default decodes wait for four of these."""
UNTOLD = -1
"""Stands for a token whose id was not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    name: str
    weight_class: WeightClass
    server: Path
    model: Path
    flags: tuple[str, ...] = ()

    @contextlib.contextmanager
    def started(self, threads: int) -> Iterator[Run]:
        if not self.model.exists():
            raise Unavailable(f"no file {self.model.name}")
        address = f"127.0.0.1:{free_port()}"
        host, _, port = address.partition(":")
        argv: list[str | Path] = [
            self.server,
            "--model",
            self.model,
            "--host",
            host,
            "--port",
            port,
        ]
        argv += ["--threads", str(threads), "--threads-batch", str(threads)]
        argv += ["--parallel", str(NUM_SLOTS), "--ctx-size", str(NUM_SLOTS * SLOT_TOKENS)]
        argv += ["--batch-size", str(BATCH_TOKENS)]
        with ServerProcess([*argv, *self.flags]) as process:
            process.wait(lambda: answers(address, "/health"), PATIENCE_S)
            run = functools.partial(complete, address)
            yield functools.partial(ask_all, run)


async def complete(address: str, ask: Ask, timeline: Timeline) -> None:
    body = {
        "prompt": list(ask.prompt),
        "n_predict": ask.num_outputs,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "return_tokens": True,
    }
    async for data in sse_client.events(address, "/completion", json.dumps(body).encode()):
        read_event(data, time.perf_counter(), timeline)
    if len(timeline.tokens) != ask.num_outputs:
        raise ServerFailed(f"{len(timeline.tokens)} tokens instead of {ask.num_outputs}")


def read_event(data: bytes, now: float, timeline: Timeline) -> None:
    """Counts by `tokens_predicted`.

    A token that ends within a character is not sent, and the next event holds the last token alone:
    those before it arrive with it and have no id here.
    """
    event = json.loads(data)
    if "error" in event:
        raise ServerFailed(data.decode())
    num_new = event["tokens_predicted"] - len(timeline.tokens)
    told = event.get("tokens", [])[-num_new:] if num_new > 0 else []
    timeline.tokens += [UNTOLD] * (num_new - len(told)) + told
    timeline.arrivals += [now] * num_new
