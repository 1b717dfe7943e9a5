"""The step loop's process: clients, loop and socket, from start to drained end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import uuid
from typing import Any

from common.process import ProcessStatus
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.discovery import Discovery
from scheduler_service.engine.executor_client import GrpcExecutorClient
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.server import EngineServer

log = logging.getLogger(__name__)

_WORKERS_FIRST_S = 1.0
"""Beyond --shutdown-timeout: the API workers tell their clients UNAVAILABLE, which a client may
resume from; an abort from here, which it may not, is for what no worker ended."""


async def serve(config: SchedulerConfig, status: ProcessStatus, stop: asyncio.Event) -> None:
    """Runs the loop until `stop`, then drains it: at most `shutdown_timeout` seconds."""
    assert config.engine_socket is not None
    scheduler_id = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    connect = functools.partial(GrpcExecutorClient, scheduler_id=scheduler_id)
    clients = [connect(address) for address in config.executor_addresses]
    loop = EngineLoop(config, clients)
    discovery = Discovery(config.executor_names, loop, connect)
    server = EngineServer(config.engine_socket, loop)
    await server.start()
    # What was imported lives for ever: a full collection that walks it stops the loop for 10 to 30
    # ms, and 0.01 ms without it.
    gc.collect()
    gc.freeze()
    status.listening({"engine": config.engine_socket})
    running = asyncio.create_task(_run(loop, discovery))
    stopping = asyncio.create_task(stop.wait())
    tasks = (running, stopping, asyncio.create_task(_report_ready(loop, status)))
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        await _drain(loop, running, config.shutdown_timeout + _WORKERS_FIRST_S)
    finally:
        await server.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.close()
        await discovery.close()


async def _run(loop: EngineLoop, discovery: Discovery) -> None:
    """Never returns; an error in either is a bug and ends the process."""
    async with asyncio.TaskGroup() as group:
        group.create_task(loop.run())
        group.create_task(discovery.run())


async def _report_ready(loop: EngineLoop, status: ProcessStatus) -> None:
    await loop.ready.wait()
    status.ready()


async def _drain(loop: EngineLoop, running: asyncio.Future[Any], timeout_s: float) -> None:
    loop.drain()
    idle = asyncio.create_task(loop.idle.wait())
    await asyncio.wait((idle, running), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not idle.done():
        log.warning("requests did not end in time; aborting them")
        loop.abort_all()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(idle, 1.0)
