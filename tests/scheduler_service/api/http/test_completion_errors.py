"""POST /v1/completions when it goes wrong: refused, malformed, lost on the way."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from scheduler_service.engine.messages import Refused
from tests.scheduler_service.api.conftest import Script
from tests.scheduler_service.api.http.events import error_of, events_of
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import IM_END, VOCAB_SIZE

URL = "/v1/completions"
TEXT = " Paris 🗼 is the capital of France."


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "smollm2-135m", "prompt": "Hello", "max_tokens": 50, **changes}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None),
        ("prompt", []),
        ("prompt", ""),
        ("prompt", 5),
        ("prompt", {"text": "a"}),
        ("prompt", [[]]),
        ("prompt", [5, "a"]),
        ("prompt", ["a", 5]),
        ("prompt", ["a", None]),
        ("prompt", [1.5]),
        ("prompt", [VOCAB_SIZE]),
        ("prompt", [-1]),
        ("prompt", [[300] * 600, [1]]),
        ("prompt", ["a"] * 2000),
        ("prompt", [300] * 512),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_tokens", 512),
        ("max_tokens", 10**12),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("prompt_logprobs", 21),
        ("n", 0),
        ("n", 10**9),
        ("best_of", 10**6),
        ("stream", 1),
        ("stream", "true"),
        ("echo", "yes"),
        ("temperature", "hot"),
        ("top_k", 0.5),
        ("stop", [""]),
        ("stop_token_ids", [VOCAB_SIZE + 5]),
        ("suffix", "end"),
        ("use_beam_search", True),
        ("response_format", {"type": "json_object"}),
        ("allowed_token_ids", [5]),
        ("allowed_token_ids", []),
        ("structured_outputs", {}),
        ("guided_json", {}),
        ("guided_json", {"type": "object"}),
        ("guided_choice", ["a", "b"]),
        ("guided_regex", ""),
        ("bad_words", ["x"]),
        ("prompt_embeds", "AAAA"),
        ("chat_template", "{{ 1 }}"),
        ("return_token_ids", "yes"),
        ("model", 7),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_bad_field_is_named_and_nothing_is_run(
    client: httpx.AsyncClient,
    connection: FakeEngineConnection,
    field: str,
    value: Any,
    *,
    stream: bool,
) -> None:
    response = await client.post(URL, json=body(stream=stream) | {field: value})
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert connection.submits == []


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("prompt", [], ("a list of token ids", "an empty list", "at least one")),
        ("prompt", None, ("a string", "None", "at least one")),
        ("max_tokens", -1, ("from 0", "-1", "null is as many as the context takes")),
        ("logit_bias", {"the": 1}, ("keys are token ids from 0 to", "'the'", "tokenize the text")),
        ("logit_bias", {str(VOCAB_SIZE): 1}, (str(VOCAB_SIZE - 1), f"'{VOCAB_SIZE}'")),
        ("logit_bias", [1], ("object", "a list")),
        ("stop", {"a": 1}, ("list of strings", "an object")),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_an_error_says_what_came_and_what_to_send(
    client: httpx.AsyncClient, field: str, value: Any, words: tuple[str, ...]
) -> None:
    error = error_of(await client.post(URL, json=body() | {field: value}))
    assert error["param"] == field
    for word in (field, *words):
        assert word in error["message"], error["message"]


async def test_prompts_times_n_are_capped(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json=body(prompt=["a"] * 1000, n=100))
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json=body(model="gpt-4"))
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"
    assert (await client.post(URL, json=body(model=None, max_tokens=1))).status_code == 200


async def test_unknown_fields_and_nulls_are_ignored(
    client: httpx.AsyncClient, script: Script
) -> None:
    script.say(TEXT, then=[IM_END])
    nulls = dict.fromkeys(("temperature", "stop", "n", "logprobs", "suffix", "best_of", "user"))
    nulls |= {"guided_json": None, "allowed_token_ids": None, "tools": [], "bad_words": []}
    response = await client.post(URL, json=body(no_such_field={"a": [1]}, user="me") | nulls)
    assert response.status_code == 200


async def test_ignored_fields_are_named_where_somebody_debugs(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="scheduler_service.api.http.body")
    known = {"temperature": 1, "stream_options": None, "prompt_logprobs": None}
    assert (await client.post(URL, json=body(max_tokens=1, **known))).status_code == 200
    assert caplog.records == []
    asked = body(max_tokens=1, temprature=0, **{"x" * 5000: 1}, **{str(i): 1 for i in range(50)})
    assert (await client.post(URL, json=asked)).status_code == 200
    (record,) = caplog.records
    names = vars(record)["fields"]
    assert names[:3] == ["temprature", "x" * 60, "0"]
    assert len(names) == 16


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("refused", "status", "retry_after"),
    [
        (Refused(1, "queue_full", "", "full", 2.2), 429, "3"),
        (Refused(1, "unavailable", "", "no executor"), 503, "1"),
        (Refused(1, "invalid", "max_tokens", "beyond the pool"), 400, None),
    ],
)
async def test_a_refusal_is_a_plain_error_for_streams_too(
    client: httpx.AsyncClient,
    connection: FakeEngineConnection,
    refused: Refused,
    status: int,
    retry_after: str | None,
    *,
    stream: bool,
) -> None:
    connection.refusal = lambda submit: refused
    response = await client.post(URL, json=body(stream=stream))
    assert response.status_code == status
    assert response.headers.get("retry-after") == retry_after
    assert error_of(response)["message"] == refused.message
    assert error_of(response)["param"] == (refused.field or None)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_before_the_first_token_is_a_status(
    client: httpx.AsyncClient, connection: FakeEngineConnection, *, stream: bool
) -> None:
    connection.expires_at = 0
    response = await client.post(URL, json=body(stream=stream, timeout=5))
    assert response.status_code == 504
    assert error_of(response)["type"] == "timeout_error"
    connection.expires_at, connection.error_at = None, 0
    response = await client.post(URL, json=body(stream=stream))
    assert response.status_code == 500
    assert "the executor said no" in error_of(response)["message"]


@pytest.mark.parametrize("attribute", ["expires_at", "error_at"])
async def test_an_error_after_the_first_token_is_one_event(
    client: httpx.AsyncClient, connection: FakeEngineConnection, attribute: str
) -> None:
    setattr(connection, attribute, 3)
    events = events_of(await client.post(URL, json=body(stream=True, n=2, max_tokens=100)))
    errors = [event for event in events if "error" in event]
    assert errors == events[-1:]
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    assert connection.num_live == 0


async def test_aborted_by_another_is_an_end_like_others(
    client: httpx.AsyncClient, script: Script, connection: FakeEngineConnection
) -> None:
    def answer(submit: Any, index: int) -> list[int]:
        return [300] * 3

    script.answer = answer
    original = connection._answers

    def aborting(submit: Any, index: int) -> Any:
        connection.abort(submit.request_id)
        return original(submit, index)

    connection._answers = aborting
    choice = (await client.post(URL, json=body())).json()["choices"][0]
    assert choice["finish_reason"] == "abort"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"prompt": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}",
    ],
    ids=range(12),
)
async def test_malformed_json_is_a_bad_request(client: httpx.AsyncClient, content: bytes) -> None:
    response = await client.post(URL, content=content)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "cause"), [(b'{"temperature": NaN}', "NaN"), (b"", "the body is empty")]
)
async def test_a_likely_cause_of_malformed_json_is_said(
    client: httpx.AsyncClient, content: bytes, cause: str
) -> None:
    response = await client.post("/v1/completions", content=content)
    assert cause in response.json()["error"]["message"]


async def test_a_body_over_the_cap_is_refused(client: httpx.AsyncClient) -> None:
    content = b'{"prompt": "' + b"a" * (9 << 20) + b'"}'
    assert (await client.post(URL, content=content)).status_code == 413

    async def parts() -> Any:
        for _ in range(20):
            yield b"a" * (1 << 20)

    response = await client.post(URL, content=parts())
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"
