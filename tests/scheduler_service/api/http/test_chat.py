"""POST /v1/chat/completions over a scripted engine."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import Any

import httpx
import pytest

from scheduler_service.api.http.app import build_app
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service
from scheduler_service.api.tokenizer import Tokenizer
from scheduler_service.config import SchedulerConfig
from tests.scheduler_service.api.conftest import Script
from tests.scheduler_service.api.http.events import error_of, events_of
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import IM_END

URL = "/v1/chat/completions"
TEXT = "Paris 🗼 is the capital of France."


@pytest.fixture
def service(
    config: SchedulerConfig, connection: FakeEngineConnection, chat_model: ServedModel
) -> Service:
    made = Service(config, connection)  # type: ignore[arg-type]
    made.set_model(chat_model)
    return made


def body(**changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Where is the tower?"}]
    return {"model": "smollm2-135m", "messages": messages, **changes}


async def test_an_answer_is_a_message(client: httpx.AsyncClient, script: Script) -> None:
    ids = script.say(TEXT, then=[IM_END])
    answer = (await client.post(URL, json=body())).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT}
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    assert answer["usage"]["completion_tokens"] == len(ids)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_the_prompt_is_the_template_with_no_special_token_doubled(
    client: httpx.AsyncClient, connection: FakeEngineConnection, tokenizer: Tokenizer
) -> None:
    asked = body(max_tokens=1, return_token_ids=True, request_id="mine")
    answer = (await client.post(URL, json=asked)).json()
    assert answer["id"] == connection.submits[0].request_id == "chatcmpl-mine"
    prompt = array("i", connection.submits[0].prompt_token_ids).tolist()
    assert answer["prompt_token_ids"] == prompt
    assert answer["choices"][0]["token_ids"] == [260]
    assert tokenizer.decode(prompt, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhere is the tower?<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_the_role_comes_first_and_the_end_once(
    client: httpx.AsyncClient, script: Script
) -> None:
    script.say(TEXT, then=[IM_END])
    asked = body(stream=True, n=2, stream_options={"include_usage": True}, return_token_ids=True)
    *chunks, usage = events_of(await client.post(URL, json=asked))
    assert usage["choices"] == []
    by_choice: dict[int, list[Any]] = defaultdict(list)
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        by_choice[choice["index"]].append(choice)
    assert sorted(by_choice) == [0, 1]
    for first, *rest in by_choice.values():
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"]["content"] for choice in rest) == TEXT
        assert all("role" not in choice["delta"] for choice in rest)
        assert [choice["finish_reason"] for choice in rest[:-1]] == [None] * (len(rest) - 1)
        assert rest[-1]["finish_reason"] == "stop"
    assert chunks[0]["prompt_token_ids"]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
async def test_c44_usage_of_a_stream_is_a_chunk_of_its_own_and_only_on_demand(
    client: httpx.AsyncClient, script: Script, options: dict[str, Any] | None
) -> None:
    ids = script.say(TEXT, then=[IM_END])
    asked = body(stream=True, n=2, stream_options=options)
    chunks = events_of(await client.post(URL, json=asked))
    if options and options.get("include_usage"):
        *chunks, last = chunks
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 2 * len(ids)
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_negative_length_is_told_what_to_send(
    client: httpx.AsyncClient, field: str
) -> None:
    error = error_of(await client.post(URL, json=body(**{field: -1})))
    assert error["param"] == field
    assert f"{field} must be an integer from 1 to" in error["message"]
    assert "not -1; leave it out" in error["message"]


async def test_max_completion_tokens_wins(
    client: httpx.AsyncClient, connection: FakeEngineConnection
) -> None:
    await client.post(URL, json=body(max_tokens=5, max_completion_tokens=3))
    await client.post(URL, json=body(max_tokens=5))
    await client.post(URL, json=body())
    assert [submit.max_tokens for submit in connection.submits] == [3, 5, None]


@pytest.mark.parametrize("top", [None, 0, 3])
async def test_c58_logprobs_have_bytes_and_the_best(
    client: httpx.AsyncClient, script: Script, top: int | None
) -> None:
    script.say(TEXT)
    asked = body(logprobs=True, top_logprobs=top, stop="capital")
    answer = (await client.post(URL, json=asked)).json()
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    joined = b"".join(bytes(entry["bytes"]) for entry in content)
    assert joined.decode() == choice["message"]["content"] + "capital"
    assert "".join(entry["token"] for entry in content) == joined.decode()
    for entry in content:
        assert entry["logprob"] == -9.0
        best = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(best) == (top or 0)
        assert best == sorted(best, reverse=True)
    streamed = [
        entry
        for chunk in events_of(await client.post(URL, json=asked | {"stream": True}))
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == content


async def test_text_parts_are_joined(
    client: httpx.AsyncClient, connection: FakeEngineConnection, tokenizer: Tokenizer
) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await client.post(URL, json=body(messages=[{"role": "user", "content": parts}], max_tokens=1))
    prompt = array("i", connection.submits[0].prompt_token_ids).tolist()
    assert "user\none\ntwo<|im_end|>" in tokenizer.decode(prompt, skip_special_tokens=False)


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", None),
        ("messages", []),
        ("messages", "hello"),
        ("messages", [5]),
        ("messages", [{"content": "x"}]),
        ("messages", [{"role": 5, "content": "x"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
        ("messages", [{"role": "user", "content": ["x"]}]),
        ("messages", [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]),
        ("messages", [USER] * 100_000),
        ("messages", [{"role": "user", "content": "word " * 600}]),
        ("max_tokens", 0),
        ("max_tokens", 10_000),
        ("max_completion_tokens", 0),
        ("max_completion_tokens", 10_000),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("logprobs", 5),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_schema"}),
        ("prompt_logprobs", 0),
        ("chat_template", "{{ messages }}"),
        ("chat_template_kwargs", {"a": 1}),
        ("add_generation_prompt", "no"),
        ("continue_final_message", True),
        ("n", 129),
        ("stop", ["a"] * 10**5),
        ("stop", "x" * 10**6),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_bad_field_is_named_and_nothing_is_run(
    client: httpx.AsyncClient, connection: FakeEngineConnection, field: str, value: Any
) -> None:
    for stream in (False, True):
        response = await client.post(URL, json=body(stream=stream) | {field: value})
        assert response.status_code == 400, response.text
        assert error_of(response)["param"] == field
    assert connection.submits == []


async def test_an_empty_conversation_is_told_so(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json=body(messages=[]))
    assert error_of(response)["message"] == "messages is empty; send at least one"


async def test_c44_stream_options_are_for_streams(
    client: httpx.AsyncClient, connection: FakeEngineConnection
) -> None:
    for streamed in ({}, {"stream": False}):
        asked = body(stream_options={"include_usage": True}) | streamed
        response = await client.post(URL, json=asked)
        assert response.status_code == 400
        assert error_of(response)["param"] == "stream_options"
    assert connection.submits == []


async def test_what_openai_clients_send_by_default_is_taken(
    client: httpx.AsyncClient, script: Script
) -> None:
    script.say(TEXT, then=[IM_END])
    harmless = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "stream_options": None,
        "user": "u",
        "store": False,
        "metadata": {},
        "parallel_tool_calls": True,
        "service_tier": "auto",
    }
    assert (await client.post(URL, json=body(**harmless))).status_code == 200


async def test_a_model_without_a_template_says_so(
    config: SchedulerConfig, connection: FakeEngineConnection, model: ServedModel
) -> None:
    service = Service(config, connection)  # type: ignore[arg-type]
    service.set_model(model)
    transport = httpx.ASGITransport(build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as bare:
        response = await bare.post(URL, json=body())
    assert response.status_code == 400
    assert "no chat template" in error_of(response)["message"]
