"""Health, readiness, metrics, the prefix cache, models, and the shape of every error."""

from __future__ import annotations

import httpx
import pytest

from common.version import VERSION
from scheduler_service.api.http.app import build_app
from scheduler_service.api.service import Service
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.messages import Readiness
from tests.scheduler_service.api.http.events import error_of
from tests.support.fake_engine_connection import FakeEngineConnection


async def test_liveness_does_not_depend_on_readiness(
    client: httpx.AsyncClient, connection: FakeEngineConnection
) -> None:
    assert (await client.get("/health/ready")).status_code == 200
    connection.readiness = Readiness(False, "no executor")
    assert (await client.get("/health")).status_code == 200
    response = await client.get("/health/ready")
    assert response.status_code == 503
    assert error_of(response)["message"] == "no executor"


async def test_everything_waits_for_the_model(
    config: SchedulerConfig, connection: FakeEngineConnection
) -> None:
    transport = httpx.ASGITransport(build_app(Service(config, connection)))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        for response in (
            await client.get("/health/ready"),
            await client.get("/v1/models"),
            await client.post("/v1/completions", json={"prompt": "a"}),
            await client.post("/v1/chat/completions", json={"messages": []}),
            await client.post("/tokenize", json={"prompt": "a"}),
        ):
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert "not loaded yet" in error_of(response)["message"]


async def test_a_draining_server_is_not_ready(service: Service, client: httpx.AsyncClient) -> None:
    service.drain()
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/health/ready")).status_code == 503
    response = await client.post("/v1/completions", json={"prompt": "a"})
    assert response.status_code == 503


async def test_metrics_are_the_loops(client: httpx.AsyncClient) -> None:
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "octavo_up 1" in response.text


async def test_the_prefix_cache_can_be_emptied(
    client: httpx.AsyncClient, connection: FakeEngineConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = await client.post("/reset_prefix_cache")
    assert (response.status_code, response.json()) == (200, {"reset": True})
    assert connection.calls == ["reset_prefix_cache"]

    async def busy(method: str) -> bool:
        return False

    monkeypatch.setattr(connection, "call", busy)
    assert (await client.post("/reset_prefix_cache")).status_code == 503


async def test_the_model_is_listed(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/models")).json()
    assert answer["object"] == "list"
    (card,) = answer["data"]
    assert card["id"] == "smollm2-135m"
    assert card["max_model_len"] == 512
    assert (await client.get("/v1/models/smollm2-135m")).json() == card
    response = await client.get("/v1/models/other/name")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


async def test_unknown_routes_and_methods_have_the_usual_shape(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/nothing")
    assert (response.status_code, error_of(response)["code"]) == (404, "not_found")
    response = await client.get("/v1/completions")
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
    assert error_of(response)["message"] == "/v1/completions takes POST"
    for path, meant in (
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/completions", "did you mean /v1/completions?"),
        ("/", "there are /v1/completions, "),
        ("/v1/embeddings", "there are /v1/completions, "),
        ("/v1/embeddings", " /v1/models/{name},"),
    ):
        message = error_of(await client.get(path))["message"]
        assert message.startswith(f"there is no {path} here")
        assert meant in message
    for path in ("/docs", "/openapi.json", "/redoc"):
        assert (await client.get(path)).status_code == 404


async def test_a_bug_is_a_500_that_tells_nothing(
    client: httpx.AsyncClient, connection: FakeEngineConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*args: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("scheduler_service.api.http.completions.read_completion_request", explode)
    response = await client.post("/v1/completions", json={"prompt": "a"})
    assert response.status_code == 500
    assert error_of(response)["message"] == "internal error"


async def test_the_version_is_told(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version")).json() == {"version": VERSION}
