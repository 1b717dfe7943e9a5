"""Puts the HTTP API together."""

from __future__ import annotations

from fastapi import FastAPI

from scheduler_service.api.api_key import ApiKey, HttpKeyGate
from scheduler_service.api.http import (
    chat,
    completions,
    errors,
    models,
    operations,
    tokenization,
)
from scheduler_service.api.http.request_ids import RequestIds
from scheduler_service.api.service import Service
from scheduler_service.api.version import VERSION


def build_app(service: Service) -> FastAPI:
    # No schema pages: bodies are read by hand, and an open page would tell of every route.
    app = FastAPI(
        title="Octavo",
        version=VERSION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for part in (completions, chat, models, tokenization, operations):
        app.include_router(part.router(service))
    errors.install(app)
    # The last one added is the outermost: refusals have ids too.
    if service.config.api_key is not None:
        app.add_middleware(HttpKeyGate, key=ApiKey(service.config.api_key))
    app.add_middleware(RequestIds)
    return app
