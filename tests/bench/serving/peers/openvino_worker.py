"""OpenVINO GenAI has no server: this runs its pipeline beside a socket, under OpenVINO's Python.

`openvino_worker.py MODEL THREADS PROPERTIES`, PROPERTIES being JSON. Each connection sends one line
{"prompt": [ids], "num_outputs": n} and gets a line {"at": s, "tokens": [ids]} for each step that
gave it tokens, then the end. `at` is of the clock that the client measures with, taken when the
step returned, so that the socket costs the pipeline no latency.

Stands alone: that Python has none of the project's packages.
"""

from __future__ import annotations

import itertools
import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy
import openvino
import openvino_genai

CACHE_GB = 2


@dataclass
class Client:
    connection: socket.socket
    received: bytes = b""
    handle: Any = None
    num_left: int = 0


class Worker:
    def __init__(self, pipeline: Any, listener: socket.socket) -> None:
        self._pipeline = pipeline
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._running: list[Client] = []
        self._ids = itertools.count()

    def serve(self) -> None:
        while True:
            # With work to do it only looks; without, it sleeps until somebody asks.
            for key, _ in self._selector.select(0 if self._running else None):
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.data)
            if self._running:
                self._pipeline.step()
                self._deliver(time.perf_counter())

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ, Client(connection))

    def _receive(self, client: Client) -> None:
        data = client.connection.recv(1 << 20)
        client.received += data
        if data and not client.received.endswith(b"\n"):
            return
        self._selector.unregister(client.connection)
        if not data:
            client.connection.close()
            return
        ask = json.loads(client.received)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = client.num_left = ask["num_outputs"]
        config.ignore_eos = True
        config.do_sample = False
        prompt = openvino.Tensor(numpy.array([ask["prompt"]], dtype=numpy.int64))
        client.handle = self._pipeline.add_request(next(self._ids), prompt, config)
        self._running.append(client)

    def _deliver(self, now: float) -> None:
        for client in self._running:
            if not client.handle.can_read():
                continue
            tokens = [t for output in client.handle.read().values() for t in output.generated_ids]
            line = json.dumps({"at": now, "tokens": tokens}) + "\n"
            client.connection.sendall(line.encode())
            client.num_left -= len(tokens)
            if client.num_left <= 0:
                client.connection.close()
        self._running = [client for client in self._running if client.num_left > 0]


def main() -> None:
    model, threads, properties = sys.argv[1:]
    config = openvino_genai.SchedulerConfig()
    config.cache_size = CACHE_GB
    config.enable_prefix_caching = True
    settings = {"INFERENCE_NUM_THREADS": int(threads), **json.loads(properties)}
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, config, "CPU", settings)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        print(f"listening {listener.getsockname()[1]}.", flush=True)
        Worker(pipeline, listener).serve()


if __name__ == "__main__":
    main()
