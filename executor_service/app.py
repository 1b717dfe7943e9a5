"""Composition root of the executor: device thread, service, health, signals.

The service listens while the model loads, so that schedulers can see it come; health says
NOT_SERVING and Hello UNAVAILABLE until the model is warm. SIGTERM drains; a second one ends the
process at once. A device fault ends it with a status other than 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from common import log as logs
from common.config import variables_of
from common.errors import ConfigError, OctavoError
from common.grpc_server import GrpcServer, Link, Service
from common.process import ProcessStatus, die_with_parent
from common.unknown_variables import told_of_misspelt
from executor_service.config import OTHER_VARIABLES, ExecutorConfig
from executor_service.cores import compute_threads, keep_threads_apart, usable_cores
from executor_service.kernels.native import build
from executor_service.models.source import find_here
from executor_service.rpc.device_thread import DeviceThread
from executor_service.rpc.metrics import ExecutorMetrics, MetricsPage
from executor_service.rpc.runner_port import StepRunner
from executor_service.rpc.servicer import SERVICE_NAME, ExecutorServicer
from proto import executor_pb2_grpc

log = logging.getLogger(__name__)

Load = Callable[[Callable[[int, int, str], None]], StepRunner]
"""Loads and warms a runner; takes a callback for progress (done, total, what)."""

EXIT_CONFIG = 2
EXIT_FAULT = 70

_SWITCH_INTERVAL_S = 5e-4
"""The event loop waits for so long at most when the device thread holds the interpreter; Python's
default of 5 ms is half of a small model's step."""
_LAST_CALLS_S = 0.5


def run(config: ExecutorConfig) -> int:
    """Serves the configured model until told to stop. Returns the exit status."""
    return run_with(config, partial(_load_model, config))


def run_with(config: ExecutorConfig, load: Load) -> int:
    """Serves whatever `load` gives."""
    logs.configure("executor", config.log_level, config.log_format)
    # With a parent, that one has told already.
    known = variables_of(ExecutorConfig) | OTHER_VARIABLES
    if config.parent_fd is None and (told := told_of_misspelt(known, os.environ)):
        log.warning("%s", told)
    die_with_parent(config.parent_fd)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return asyncio.run(_serve(config, load))


async def _serve(config: ExecutorConfig, load: Load) -> int:
    return await ExecutorProcess(config, load).serve()


def _load_model(config: ExecutorConfig, progress: Callable[[int, int, str], None]) -> StepRunner:
    find_here(config.model)  # a wrong path is told before torch is imported
    threads = compute_threads(config.threads)
    if config.device == "cpu":
        keep_threads_apart(threads, usable_cores(), os.environ)
    config = replace(config, threads=threads)  # once torch is here it could not be counted
    # Imported here, on the device thread: torch takes seconds, and the port is open meanwhile.
    # Native kernels that are not built yet take longer, on other cores.
    with build.ahead(os.environ) if config.device == "cpu" else contextlib.nullcontext():
        try:
            from executor_service.runner.load import load_runner
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"an executor needs the package {error.name}: pip install 'octavo[executor]'"
                " (from a checkout: make setup)"
            ) from error
        return load_runner(config, progress)


class ExecutorProcess:
    """One serving of one config, on the running event loop."""

    def __init__(self, config: ExecutorConfig, load: Load) -> None:
        self._config = config
        self._status = ProcessStatus(config.status_fd)
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._fault: BaseException | None = None
        self._device = DeviceThread(
            partial(load, self._status.loading),
            on_ready=self._on_device_thread(self._became_ready),
            on_fault=self._on_device_thread(self._failed),
        )
        self._servicer = ExecutorServicer(
            self._device,
            incarnation=secrets.randbelow(2**64 - 1) + 1,
            on_drain=self._not_serving,
        )
        self._metrics = ExecutorMetrics(self._servicer.counters, self._servicer.gauges)
        self._servicer.watch(self._metrics.step_done)
        register = partial(executor_pb2_grpc.add_ExecutorServicer_to_server, self._servicer)
        self._server = GrpcServer(
            [Service(SERVICE_NAME, register)],
            host=config.host,
            port=config.port,
            link=Link.INTERNAL,
        )
        self._page: MetricsPage | None = None
        self._announcing: asyncio.Future[None] | None = None

    async def serve(self) -> int:
        """Until SIGTERM, SIGINT or a fault. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        try:
            await self._listen()
        except ConfigError as error:
            return self._report(error)
        self._device.start()
        await self._stop.wait()
        if self._fault is None:
            await self._drain()
        await self._server.stop(0 if self._stop_now.is_set() else _LAST_CALLS_S)
        if self._page is not None:
            self._page.close()
        if self._fault is not None:
            return self._report(self._fault)
        log.info("stopped")
        return self._leave()

    async def _listen(self) -> None:
        config = self._config
        await self._server.start()
        addresses = {"grpc": self._server.address}
        if config.metrics_port is not None:
            self._page = self._metrics.serve(config.host, config.metrics_port)
            addresses["metrics"] = f"{config.host}:{self._page.port}"
        self._status.listening(addresses)
        log.info("listening", extra=addresses)

    async def _drain(self) -> None:
        log.info("draining")
        await self._servicer.refuse_claims()
        ending = asyncio.create_task(self._servicer.end_quietly(self._config.shutdown_timeout))
        hurry = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait((ending, hurry), return_when=asyncio.FIRST_COMPLETED)
        for task in (ending, hurry):
            task.cancel()

    async def _not_serving(self) -> None:
        await self._server.set_not_serving()

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def _on_device_thread(self, method: Callable[..., None]) -> Callable[..., None]:
        loop = asyncio.get_running_loop()

        def called(argument: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(method, argument)

        return called

    def _became_ready(self, runner: StepRunner) -> None:
        spec = runner.spec
        log.info(
            "model loaded",
            extra={
                "model": spec.model_name,
                "device": spec.device,
                "dtype": spec.dtype,
                "weights_bytes": spec.weights_bytes,
                "kv_bytes": spec.kv_bytes,
                "kv_blocks": spec.num_blocks,
                "kv_tokens": spec.num_blocks * spec.block_size,
            },
        )
        self._servicer.set_runner(runner)
        self._announcing = asyncio.ensure_future(self._announce())

    async def _announce(self) -> None:
        if not self._stop.is_set():
            await self._server.set_serving()
            self._status.ready()
            log.info("ready")

    def _failed(self, fault: BaseException) -> None:
        self._fault = fault
        self._stop_now.set()
        self._stop.set()

    def _report(self, fault: BaseException) -> int:
        """Says why the process ends, for the log and for the parent."""
        self._status.failed(str(fault) or repr(fault))
        if isinstance(fault, OctavoError):
            log.critical("%s", fault)
            return EXIT_CONFIG
        log.critical("the device failed; this process ends", exc_info=fault)
        return EXIT_FAULT

    def _leave(self) -> int:
        """Ends the device thread; if it is deep in a native call, the process without it."""
        if not self._device.stop(_LAST_CALLS_S):
            logging.shutdown()
            os._exit(0)
        return 0
