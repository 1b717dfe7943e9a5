"""An owner that freezes: its stream has to end by itself, and its epoch must not come back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import grpc
import pytest

from tests.common.histories import History
from tests.executor_service.rpc.harness import Script, served

OWNER = """
import sys, threading, grpc
from common.grpc_server import Link, channel_options
from proto import executor_pb2, executor_pb2_grpc

never = threading.Event()
def nothing():
    never.wait()
    yield

with grpc.insecure_channel(sys.argv[1], options=channel_options(Link.INTERNAL)) as channel:
    stub = executor_pb2_grpc.ExecutorStub(channel)
    stub.Hello(executor_pb2.HelloRequest(scheduler_id="frozen", protocol_version=1))
    call = stub.Execute(nothing())
    print("attached", flush=True)
    for reply in call:
        pass
"""


async def test_c79_frozen_owner_loses_the_executor_within_seconds_and_for_good() -> None:
    async with served() as executor:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OWNER, executor.address, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"attached\n"
            await executor.info_when(lambda _: executor.servicer.has_stream)
            with pytest.raises(grpc.aio.AioRpcError, match="owner: frozen"):
                await executor.hello("other")
            os.kill(process.pid, signal.SIGSTOP)
            frozen = time.monotonic()
            await executor.info_when(lambda info: info.owner == "")
            assert time.monotonic() - frozen < 6
            stream = await executor.open("other")
            os.kill(process.pid, signal.SIGCONT)
            await process.wait()
            await stream.send(Script(History(1, max_live=1).add(num_tokens=20)).prompt())
            assert (await stream.receive()).step_id == 1
            assert (await executor.info()).owner == "other"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
