"""GET /v1/models and /v1/models/{name}: the one model that is served."""

from __future__ import annotations

import time

from fastapi import APIRouter

from common.errors import NotFoundError
from scheduler_service.api.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    created = int(time.time())

    def card() -> dict[str, object]:
        model = service.model
        return {
            "id": model.name,
            "object": "model",
            "created": created,
            "owned_by": "octavo",
            "root": model.info.name,
            "parent": None,
            "max_model_len": model.max_model_len,
        }

    @routes.get("/v1/models")
    async def list_models() -> dict[str, object]:
        return {"object": "list", "data": [card()]}

    @routes.get("/v1/models/{name:path}")
    async def get_model(name: str) -> dict[str, object]:
        if name != service.model.name:
            raise NotFoundError(
                f"the model {name[:100]!r} is not served here; {service.model.name!r} is"
            )
        return card()

    return routes
