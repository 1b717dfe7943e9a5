"""A plain client of the HTTP routes, which sees status, headers and every event as sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import httpx


class HttpClient:
    def __init__(self, address: str, *, timeout_s: float = 110.0) -> None:
        self._client = httpx.Client(base_url=address, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def get(self, path: str) -> httpx.Response:
        return self._client.get(path)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self._client.post(path, json=body)

    def post_bytes(self, path: str, content: bytes) -> httpx.Response:
        headers = {"content-type": "application/json"}
        return self._client.post(path, content=content, headers=headers)

    def complete(self, **body: Any) -> Any:
        """The JSON answer of /v1/completions; token ids come with it."""
        response = self.post("/v1/completions", **({"return_token_ids": True} | body))
        assert response.status_code == 200, response.text
        return response.json()

    def token_ids(self, **body: Any) -> list[int]:
        """Of the only choice of a completion."""
        (choice,) = self.complete(**body)["choices"]
        return list(choice["token_ids"])

    def stream(self, path: str = "/v1/completions", **body: Any) -> Iterator[Any]:
        """Every event of a stream but the last, which must be [DONE]. Closing it hangs up."""
        with self._client.stream("POST", path, json=body | {"stream": True}) as response:
            assert response.status_code == 200, response.read()
            done = False
            for line in response.iter_lines():
                if not line:
                    continue
                assert not done, f"after [DONE]: {line}"
                data = line.removeprefix("data: ")
                done = data == "[DONE]"
                if not done:
                    yield json.loads(data)
            assert done, "no [DONE]"

    def refuses(self) -> bool:
        """Whether a new request is turned away: 503, or nobody listens any more."""
        try:
            response = self.post("/v1/completions", prompt="Hi", max_tokens=1)
        except httpx.TransportError:
            return True
        return response.status_code == 503

    def metrics(self) -> dict[str, float]:
        """Samples by their full name, labels included, as in `octavo_x{a="b"}`."""
        lines = self.get("/metrics").text.splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}
