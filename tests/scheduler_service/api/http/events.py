"""Reading server-sent events of a finished answer."""

from __future__ import annotations

import json
from typing import Any

import httpx


def events_of(response: httpx.Response) -> list[Any]:
    """Checked to be nothing but events and one [DONE] at the end."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n")
    events = response.text.split("\n\n")[:-1]
    assert all(event.startswith("data: ") for event in events)
    assert events.count("data: [DONE]") == 1
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, checked to have the usual shape."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return dict(error)
