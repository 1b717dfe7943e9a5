from __future__ import annotations

import httpx
import pytest


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
