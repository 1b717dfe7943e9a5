"""Chats that the template, or the server before it, refuses. C numbers name acceptance cases."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest_asyncio

from scheduler_service.api.http.app import build_app
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service
from scheduler_service.api.template_process import MAX_OUTPUT_CHARS, TemplateProcess
from scheduler_service.config import SchedulerConfig
from tests.scheduler_service.api.http.events import error_of
from tests.support.fake_engine_connection import FakeEngineConnection

URL = "/v1/chat/completions"
ALTERNATING = (
    "{% for message in messages %}"
    "{% if message.role not in ('user', 'assistant') %}"
    "{{ raise_exception('only user and assistant are known, not ' ~ message.role) }}{% endif %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}"
)
LOOPING = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest_asyncio.fixture
async def with_template(
    config: SchedulerConfig, connection: FakeEngineConnection, model: ServedModel
) -> AsyncIterator[Callable[[str], Awaitable[httpx.AsyncClient]]]:
    """Clients of the model under other chat templates."""
    async with AsyncExitStack() as stack:

        async def start(source: str) -> httpx.AsyncClient:
            template = await TemplateProcess.start(source, {})
            stack.push_async_callback(template.close)
            service = Service(config, connection)  # type: ignore[arg-type]
            service.set_model(dataclasses.replace(model, template=template))
            transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
            return await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://octavo")
            )

        yield start


def message(role: str = "user", content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def test_c77_a_template_that_refuses_is_a_bad_request_in_its_own_words(
    with_template: Callable[[str], Awaitable[httpx.AsyncClient]],
    connection: FakeEngineConnection,
) -> None:
    client = await with_template(ALTERNATING)
    for messages, words in (
        ([message(), message()], "roles must alternate user/assistant"),
        ([message("system"), message()], "only user and assistant are known, not system"),
        ([message("wizard")], "not wizard"),
        ([message(), message("tool", "4")], "not tool"),
        ([{"role": "user"}], "messages[0].content must be a string"),
        ([message(content=None)], "messages[0].content must be a string"),
        ([message(), message("assistant", None, tool_calls=[CALL])], "tool calls"),
        ([message(content=[{"type": "image_url", "image_url": {"url": "x"}}])], "text"),
    ):
        for stream in (False, True):
            response = await client.post(URL, json={"messages": messages, "stream": stream})
            assert response.status_code == 400, response.text
            error = error_of(response)
            assert words in error["message"]
            assert (error["type"], error["param"]) == ("invalid_request_error", "messages")
    assert connection.submits == []
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    taken = await client.post(URL, json={"messages": [message(content=parts)], "max_tokens": 1})
    assert taken.status_code == 200


async def test_c77_a_template_has_a_second_and_a_limit_of_output(
    with_template: Callable[[str], Awaitable[httpx.AsyncClient]],
    connection: FakeEngineConnection,
) -> None:
    looping = await with_template(LOOPING)
    began = time.monotonic()
    response = await looping.post(URL, json={"messages": [message()]})
    assert time.monotonic() - began < 5
    assert response.status_code == 400
    assert "took more than 1 s" in error_of(response)["message"]
    verbose = await with_template(f"{{{{ 'a' * {MAX_OUTPUT_CHARS + 1} }}}}")
    response = await verbose.post(URL, json={"messages": [message()]})
    assert response.status_code == 400
    assert "wrote more than" in error_of(response)["message"]
    assert connection.submits == []
