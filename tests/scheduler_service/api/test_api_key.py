"""The key guards every route and method that the server itself lists."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from starlette.applications import Starlette
from starlette.routing import Route

from common.grpc_server import GrpcServer, Link
from common.grpc_server import Service as GrpcService
from proto import inference_pb2, inference_pb2_grpc
from scheduler_service.api.api_key import OPEN_PATHS, ApiKey, GrpcKeyGate
from scheduler_service.api.http.app import build_app
from scheduler_service.api.service import Service
from scheduler_service.api.servicer import InferenceServicer

KEY = "s3cret-key"
WRONG = [
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    f"Bearer {KEY}x",
    f"Bearer {KEY[:-1]}",
    f"Bearer  {KEY}",
    f"bearer {KEY}",
    f"Basic {KEY}",
    KEY,
    f"Bearer {KEY}, Bearer {KEY}",
    "Bearer \xff",
]


@pytest.fixture
def guarded(service: Service) -> Service:
    made = Service(dataclasses.replace(service.config, api_key=KEY), service.connection)
    made.set_model(service.model)
    return made


@pytest.fixture
def app(guarded: Service) -> Starlette:
    return build_app(guarded)


@pytest_asyncio.fixture
async def http(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as made:
        yield made


def headers_of(authorization: str | None) -> list[tuple[bytes, bytes]]:
    if authorization is None:
        return []
    return [(b"authorization", authorization.encode("latin-1"))]


def routes_of(app: Starlette) -> list[tuple[str, str]]:
    assert all(isinstance(route, Route) for route in app.routes)
    return [(method, route.path) for route in app.routes for method in route.methods]


@pytest.mark.parametrize("authorization", WRONG)
async def test_every_route_but_health_needs_the_key(
    app: Starlette, http: httpx.AsyncClient, authorization: str | None
) -> None:
    routes = routes_of(app)
    assert len(routes) >= 10
    for method, path in routes:
        response = await http.request(
            method, path.replace("{name:path}", "x"), headers=headers_of(authorization)
        )
        if path in OPEN_PATHS:
            assert response.status_code == 200
        else:
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert response.json()["error"]["code"] == "invalid_api_key"
            assert KEY not in response.text


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1/../v1/models",
        "/v1/models/",
        "/health/../v1/models",
        "/health/ready/../../v1/models",
        "/health%2f..%2fv1/models",
        "/v1%2fmodels",
        "/%68ealth/",
        "/health/",
        "/health//ready",
        "/HEALTH",
        "/metrics",
        "/nothing",
        "/docs",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE"])
async def test_no_spelling_of_a_path_gets_round_the_key(
    app: Starlette, path: str, method: str
) -> None:
    # Straight to the app: a client would tidy up the path first.
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_the_right_key_opens(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
    assert response.status_code == 200
    twice = [*headers_of(f"Bearer {KEY}"), *headers_of("Bearer wrong")]
    assert (await http.get("/v1/models", headers=twice)).status_code == 401


@pytest_asyncio.fixture
async def channel(guarded: Service) -> AsyncIterator[grpc.aio.Channel]:
    register = functools.partial(
        inference_pb2_grpc.add_InferenceServicer_to_server, InferenceServicer(guarded)
    )
    server = GrpcServer(
        [GrpcService("octavo.inference.v1.Inference", register)],
        host="127.0.0.1",
        port=0,
        link=Link.PUBLIC,
        interceptors=[GrpcKeyGate(ApiKey(KEY))],
    )
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as made:
        yield made
    await server.stop(0)


def metadata_of(authorization: str | None) -> tuple[tuple[str, str], ...]:
    return () if authorization is None else (("authorization", authorization),)


@pytest.mark.parametrize("authorization", [value for value in WRONG if value != "Bearer \xff"])
async def test_every_method_but_health_needs_the_key(
    channel: grpc.aio.Channel, authorization: str | None
) -> None:
    descriptor = inference_pb2.DESCRIPTOR.services_by_name["Inference"]
    metadata = metadata_of(authorization)
    stub = inference_pb2_grpc.InferenceStub(channel)
    for method in descriptor.methods:
        request = getattr(inference_pb2, method.input_type.name)()
        call = getattr(stub, method.name)(request, metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            if method.server_streaming:
                await call.read()
            else:
                await call
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED, method.name
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await reflection.ServerReflectionInfo(iter([asked]), metadata=metadata).read()
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    health = health_pb2_grpc.HealthStub(channel)
    await health.Check(health_pb2.HealthCheckRequest(), metadata=metadata)


async def test_the_right_key_opens_grpc(channel: grpc.aio.Channel) -> None:
    stub = inference_pb2_grpc.InferenceStub(channel)
    metadata = metadata_of(f"Bearer {KEY}")
    info = await stub.GetModelInfo(inference_pb2.GetModelInfoRequest(), metadata=metadata)
    assert info.model == "smollm2-135m"
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = await reflection.ServerReflectionInfo(iter([asked]), metadata=metadata).read()
    names = {service.name for service in answer.list_services_response.service}
    assert "octavo.inference.v1.Inference" in names
