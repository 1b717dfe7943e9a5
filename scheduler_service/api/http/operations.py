"""Routes for operators: health, metrics, the prefix cache, the version."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from common.errors import UnavailableError
from scheduler_service.api.service import Service
from scheduler_service.api.version import VERSION

_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> dict[str, str]:
        """Liveness: this process answers, whatever else is wrong."""
        return {"status": "ok"}

    @routes.get("/health/ready")
    async def ready() -> dict[str, str]:
        if reason := service.unready_reason:
            raise UnavailableError(reason)
        return {"status": "ready"}

    @routes.get("/metrics")
    async def metrics() -> Response:
        text = await service.connection.call("metrics")
        return PlainTextResponse(str(text), media_type=_PROMETHEUS_TEXT)

    @routes.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, bool]:
        if not await service.connection.call("reset_prefix_cache"):
            raise UnavailableError("requests hold cached blocks; try again when none runs")
        return {"reset": True}

    @routes.get("/version")
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    return routes
