from __future__ import annotations

from typing import Any

import httpx
import pytest

from scheduler_service.engine.messages import Refused
from tests.scheduler_service.api.http.events import error_of, events_of
from tests.support.fake_engine_connection import FakeEngineConnection


async def test_an_acceptable_id_comes_back(client: httpx.AsyncClient) -> None:
    for request_id in ("a", "trace-1/2:3 4", "x" * 128):
        response = await client.get("/health", headers={"X-Request-Id": request_id})
        assert response.headers["x-request-id"] == request_id


@pytest.mark.parametrize(
    "request_id", [b"", b"x" * 129, b"x" * 10**6, b"a\xff", b"a\x01b", "é".encode(), b"a\tb"]
)
async def test_any_other_id_is_replaced(client: httpx.AsyncClient, request_id: bytes) -> None:
    response = await client.get("/health", headers=[(b"x-request-id", request_id)])
    assert response.status_code == 200
    replaced = response.headers["x-request-id"]
    assert replaced.startswith("req-")
    assert len(replaced) <= 128


async def test_errors_and_streams_have_ids_too(client: httpx.AsyncClient) -> None:
    headers = {"X-Request-Id": "mine"}
    for response in (
        await client.get("/nothing", headers=headers),
        await client.post("/v1/completions", content=b"{", headers=headers),
        await client.post(
            "/v1/completions",
            json={"prompt": "a", "max_tokens": 1, "stream": True},
            headers=headers,
        ),
    ):
        assert response.headers["x-request-id"] == "mine"


async def test_two_requests_without_ids_get_different_ones(client: httpx.AsyncClient) -> None:
    ids = {(await client.get("/health")).headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5


async def test_the_bodys_request_id_ends_the_answers_id(
    client: httpx.AsyncClient, connection: FakeEngineConnection
) -> None:
    body = {"prompt": ["a", "b"], "max_tokens": 1, "request_id": "mine"}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert answer["id"] == "cmpl-mine"
    assert [submit.request_id for submit in connection.submits] == ["cmpl-mine-0", "cmpl-mine-1"]
    chunks = events_of(await client.post("/v1/completions", json=body | {"stream": True}))
    assert {chunk["id"] for chunk in chunks} == {"cmpl-mine"}
    connection.refusal = lambda submit: Refused(submit.handle, "invalid", "request_id", "is live")
    assert error_of(await client.post("/v1/completions", json=body))["param"] == "request_id"


@pytest.mark.parametrize("request_id", ["", 5, "x" * 129, "a\nb", "é"])
async def test_a_request_id_that_fits_no_header_is_refused(
    client: httpx.AsyncClient, request_id: Any
) -> None:
    body = {"prompt": "a", "request_id": request_id}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == "request_id"
    assert "printable ASCII" in error_of(response)["message"]
