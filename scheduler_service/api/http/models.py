"""GET /v1/models and /v1/models/{name}: the one model that is served."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.errors import NotFoundError
from scheduler_service.api.http.answer import json_response
from scheduler_service.api.service import Service


def routes(service: Service) -> list[Route]:
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

    async def list_models(request: Request) -> Response:
        return json_response({"object": "list", "data": [card()]})

    async def get_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != service.model.name:
            raise NotFoundError(
                f"the model {name[:100]!r} is not served here; {service.model.name!r} is"
            )
        return json_response(card())

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
    ]
