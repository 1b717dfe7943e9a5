"""One API worker: HTTP and gRPC over one connection to the step loop.

The ports are bound and answered at once, so that /health and /health/ready tell the truth while
weights still load; requests are refused as unavailable until the model is known.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine
from typing import Any

from common.errors import ModelError
from common.grpc_server import GrpcServer, Link, PortUse
from common.grpc_server import Service as GrpcService
from common.process import ProcessStatus
from proto import inference_pb2, inference_pb2_grpc
from scheduler_service.api.api_key import ApiKey, GrpcKeyGate
from scheduler_service.api.http.app import build_app
from scheduler_service.api.http.server import HttpServer
from scheduler_service.api.served_model import load_served_model
from scheduler_service.api.service import Service
from scheduler_service.api.servicer import InferenceServicer
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.connection import EngineConnection

log = logging.getLogger(__name__)

_LAST_WORDS_S = 2.0
"""For answers that are complete to reach their clients."""

_SERVICE_NAME = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name


async def serve(
    config: SchedulerConfig,
    connection: EngineConnection,
    status: ProcessStatus,
    stop: asyncio.Event,
) -> None:
    """Serves until `stop` is set, then drains: running requests get --shutdown-timeout.

    ConfigError if a port cannot be had, ModelError if the model's files are unusable.
    """
    service = Service(config, connection)
    http, rpc = _http_server(config, service), _grpc_server(config, service)
    try:
        await http.start()
        await rpc.start()
        status.listening({"http": http.address, "grpc": rpc.address})
        try:
            await _until(stop, _serve_model(service, rpc, status))
        finally:
            # The ports stay open meanwhile, to say that this server is going.
            await rpc.set_not_serving()
            await service.finish(config.shutdown_timeout)
    finally:
        await asyncio.gather(http.stop(), rpc.stop(_LAST_WORDS_S))
        await service.close()


async def _serve_model(service: Service, rpc: GrpcServer, status: ProcessStatus) -> None:
    """Loads the model, then keeps gRPC health equal to readiness, for ever."""
    connection = service.connection
    info = await connection.model()
    try:
        service.set_model(await load_served_model(info, service.config.served_model_name))
    except ModelError as error:
        status.failed(str(error))
        raise
    log.info("model ready", extra={"model": service.model.name, "max_len": info.max_model_len})
    while True:
        changed = asyncio.ensure_future(connection.readiness_changed())
        try:
            await asyncio.sleep(0)  # it waits now: a change after this look is not missed
            if service.unready_reason is None:
                await rpc.set_serving()
                status.ready()
            else:
                await rpc.set_not_serving()
            await changed
        finally:
            changed.cancel()


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` until it fails or `stop` is set."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
    if not working.cancelled():
        working.result()


def _port_use(config: SchedulerConfig) -> PortUse:
    return PortUse.SHARED if config.api_workers > 1 else PortUse.EXCLUSIVE


def _http_server(config: SchedulerConfig, service: Service) -> HttpServer:
    return HttpServer(
        build_app(service),
        host=config.host,
        port=config.port,
        port_use=_port_use(config),
        grace_s=_LAST_WORDS_S,
    )


def _grpc_server(config: SchedulerConfig, service: Service) -> GrpcServer:
    register = functools.partial(
        inference_pb2_grpc.add_InferenceServicer_to_server, InferenceServicer(service)
    )
    gates = [] if config.api_key is None else [GrpcKeyGate(ApiKey(config.api_key))]
    return GrpcServer(
        [GrpcService(_SERVICE_NAME, register)],
        host=config.host,
        port=config.grpc_port,
        link=Link.PUBLIC,
        port_use=_port_use(config),
        port_flag="--grpc-port",
        interceptors=gates,
    )
