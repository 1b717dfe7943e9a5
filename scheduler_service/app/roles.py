"""The processes below the supervisor: step loop and API worker, each with its own event loop."""

from __future__ import annotations

import asyncio
import logging
import signal

from common.process import ProcessStatus
from scheduler_service.config import SchedulerConfig

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 60.0


def run_engine(config: SchedulerConfig, status: ProcessStatus) -> int:
    from scheduler_service.engine.service import serve

    async def main() -> None:
        await serve(config, status, _stop_on_signals())

    asyncio.run(main())
    return 0


def run_api(config: SchedulerConfig, status: ProcessStatus) -> int:
    return asyncio.run(_serve_api(config, status))


async def _serve_api(config: SchedulerConfig, status: ProcessStatus) -> int:
    from scheduler_service.api.worker import serve
    from scheduler_service.engine.connection import EngineConnection

    assert config.engine_socket is not None
    stop = _stop_on_signals()
    connection = await EngineConnection.open(config.engine_socket, timeout_s=CONNECT_TIMEOUT_S)
    serving = asyncio.create_task(serve(config, connection, status, stop))
    changed = asyncio.create_task(connection.model_changed())
    try:
        await asyncio.wait({serving, changed}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            # Tokenizer and template are those of the model that is gone: start afresh.
            log.error("the model changed; this worker ends")
            return 1
        serving.result()
        return 0
    finally:
        for task in (serving, changed):
            task.cancel()
        await asyncio.gather(serving, changed, return_exceptions=True)
        await connection.close()


def _stop_on_signals() -> asyncio.Event:
    """Set by SIGTERM. The supervisor decides about SIGINT, which a terminal sends to everyone."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    return stop
