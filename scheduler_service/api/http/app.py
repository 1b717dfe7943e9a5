"""Puts the HTTP API together.

Starlette alone: bodies are read and answers written by hand here, so a framework that does either
would only cost its time, 0.3 ms per request.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware

from scheduler_service.api.api_key import ApiKey, HttpKeyGate
from scheduler_service.api.http import chat, completions, models, operations, tokenization
from scheduler_service.api.http.errors import EXCEPTION_HANDLERS
from scheduler_service.api.http.request_ids import RequestIds
from scheduler_service.api.service import Service


def build_app(service: Service) -> Starlette:
    parts = (completions, chat, models, tokenization, operations)
    # The outermost first: refusals have ids too.
    middleware = [Middleware(RequestIds)]
    if service.config.api_key is not None:
        middleware.append(Middleware(HttpKeyGate, key=ApiKey(service.config.api_key)))
    app = Starlette(
        routes=[route for part in parts for route in part.routes(service)],
        middleware=middleware,
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False
    return app
