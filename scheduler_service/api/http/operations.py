"""Routes for operators: health, metrics, the prefix cache, the version."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.errors import UnavailableError
from common.version import VERSION
from scheduler_service.api.http.answer import json_response
from scheduler_service.api.service import Service

_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def routes(service: Service) -> list[Route]:
    async def health(request: Request) -> Response:
        """Liveness: this process answers, whatever else is wrong."""
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        if reason := service.unready_reason:
            raise UnavailableError(reason)
        return json_response({"status": "ready"})

    async def metrics(request: Request) -> Response:
        text = await service.connection.call("metrics")
        return Response(str(text), media_type=_PROMETHEUS_TEXT)

    async def reset_prefix_cache(request: Request) -> Response:
        if not await service.connection.call("reset_prefix_cache"):
            raise UnavailableError("requests hold cached blocks; try again when none runs")
        return json_response({"reset": True})

    async def version(request: Request) -> Response:
        return json_response({"version": VERSION})

    return [
        Route("/health", health, methods=["GET"]),
        Route("/health/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
        Route("/version", version, methods=["GET"]),
    ]
