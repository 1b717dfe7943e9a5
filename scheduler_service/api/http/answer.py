"""JSON answers, and the error that some ends of choices are."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.responses import Response
from starlette.types import Send

from common.errors import OctavoError
from scheduler_service.api.choice import Delta


def json_response(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


async def send_json(send: Send, body: msgspec.Struct) -> None:
    content = msgspec.json.encode(body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def raise_failure(deltas: Iterable[Delta]) -> None:
    """OpenAI knows no choice that failed: the whole request did."""
    for delta in deltas:
        if delta.end is not None and delta.end.reason == "error":
            raise OctavoError(delta.end.message or "the executor failed this request")
