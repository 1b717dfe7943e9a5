"""Ours: `octavo up` with its defaults, or with float32 weights and KV."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.serving import sse_client
from tests.bench.serving.passes import ask_all
from tests.bench.serving.peers.contestant import Run, WeightClass
from tests.bench.serving.peers.server_process import ServerProcess

READY = r"ready http=http://([0-9.:]+) "
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OctavoUp:
    name: str
    weight_class: WeightClass
    model: str
    flags: tuple[str, ...] = ()

    @contextlib.contextmanager
    def started(self, threads: int) -> Iterator[Run]:
        command = [sys.executable, "-m", "octavo", "up", f"--model={self.model}", *self.flags]
        ports = ["--host=127.0.0.1", "--port=0", "--grpc-port=0"]
        with ServerProcess([*command, *ports, f"--threads={threads}"]) as process:
            address = process.wait(lambda: process.said(READY), PATIENCE_S)
            complete = functools.partial(sse_client.complete, address)
            yield functools.partial(ask_all, complete)
