"""An executor of a random model in a process of its own, until its standard input is closed.

The product's device thread, service, codec and runner; health, metrics and files are left out, as
they need packages that a machine with a GPU may lack.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial

import grpc
import torch

from common.grpc_server import Link, server_options
from executor_service.config import ExecutorConfig
from executor_service.rpc.device_thread import DeviceThread
from executor_service.rpc.servicer import ExecutorServicer
from executor_service.runner.cuda_device import CudaDevice, open_cuda
from executor_service.runner.device import Runner
from executor_service.runner.load import load_checkpoint
from proto import executor_pb2_grpc
from tests.support.random_llama import SHAPES, random_checkpoint

SWITCH_INTERVAL_S = 5e-4
"""As the executor's own process has it."""


def load(shape_name: str, max_num_seqs: int, device_name: str) -> Runner:
    shape = SHAPES[shape_name]
    config = ExecutorConfig(
        model=f"random {shape_name}",
        device="cuda",
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=8192 if device_name == "cuda" else 64,
        gpu_memory_utilization=0.4,
        # Of the CPU there is none to measure.
        num_blocks=None if device_name == "cuda" else 64,
    )
    device = open_cuda(config) if device_name == "cuda" else _interpreted()
    checkpoint = random_checkpoint(shape, 0, torch.device(device_name))
    return load_checkpoint(device, config, checkpoint, lambda done, total, what: None)


def _interpreted() -> CudaDevice:
    from common.kv_size import GIB
    from tests.support.late_stream import LateStream
    from tests.support.recorded_capture import RecordingCapture
    from tests.support.told_meter import ToldMeter

    return CudaDevice(
        torch.device("cpu"),
        torch.float32,
        stream=LateStream(),
        new_capture=RecordingCapture,
        meter=ToldMeter(free=GIB),
    )


async def serve(load_runner: Callable[[], Runner]) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[Runner] = loop.create_future()

    def on_ready(runner: object) -> None:
        loop.call_soon_threadsafe(ready.set_result, runner)

    def on_fault(fault: BaseException) -> None:
        if not ready.done():
            loop.call_soon_threadsafe(ready.set_exception, fault)
        print(f"the device failed: {fault!r}", file=sys.stderr, flush=True)

    async def on_drain() -> None:
        pass

    device = DeviceThread(load_runner, on_ready=on_ready, on_fault=on_fault)
    servicer = ExecutorServicer(device, incarnation=1, on_drain=on_drain)
    server = grpc.aio.server(options=server_options(Link.INTERNAL))
    executor_pb2_grpc.add_ExecutorServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    device.start()
    runner = await ready
    servicer.set_runner(runner)
    await server.start()
    spec = runner.spec
    print(json.dumps({"port": port, "num_blocks": spec.num_blocks, "kv_bytes": spec.kv_bytes}))
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)
    await asyncio.to_thread(device.stop, 10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    flags = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    asyncio.run(serve(partial(load, flags.shape, flags.max_num_seqs, flags.device)))


if __name__ == "__main__":
    main()
