"""POST /v1/completions over a scripted engine."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import httpx
import pytest

from scheduler_service.api.tokenizer import Tokenizer
from tests.scheduler_service.api.conftest import Script
from tests.scheduler_service.api.http.events import error_of, events_of
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import IM_END

URL = "/v1/completions"
TEXT = " Paris 🗼 is the capital of France."


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "smollm2-135m", "prompt": "Hello", "max_tokens": 50, **changes}


async def test_an_answer_has_text_ends_and_usage(
    client: httpx.AsyncClient, script: Script, connection: FakeEngineConnection
) -> None:
    ids = script.say(TEXT, then=[IM_END])
    connection._num_cached_tokens = 16
    answer = (await client.post(URL, json=body())).json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == "smollm2-135m"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "text": TEXT,
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert answer["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": len(ids),
        "total_tokens": 1 + len(ids),
        "prompt_tokens_details": {"cached_tokens": 16},
    }


@pytest.mark.parametrize("tokens_per_update", [1, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 20])
async def test_c43_the_last_tokens_come_with_the_end(
    client: httpx.AsyncClient,
    script: Script,
    connection: FakeEngineConnection,
    tokenizer: Tokenizer,
    max_tokens: int,
    tokens_per_update: int,
) -> None:
    ids = script.say(TEXT * 5)[:max_tokens]
    connection._tokens_per_update = tokens_per_update
    asked = body(max_tokens=max_tokens, ignore_eos=True, return_token_ids=True)
    whole = (await client.post(URL, json=asked)).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = events_of(await client.post(URL, json=asked | options))
    streamed = [token_id for chunk in chunks for token_id in chunk["choices"][0]["token_ids"]]
    assert streamed == ids == whole["choices"][0]["token_ids"]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == whole["choices"][0]["text"] == tokenizer.decode(ids, skip_special_tokens=True)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["usage"] == whole["usage"]
    assert usage["usage"]["completion_tokens"] == max_tokens


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
async def test_c44_usage_is_a_chunk_of_its_own_and_only_on_demand(
    client: httpx.AsyncClient, script: Script, options: dict[str, Any] | None
) -> None:
    script.say(TEXT, then=[IM_END])
    chunks = events_of(await client.post(URL, json=body(stream=True, n=2, stream_options=options)))
    if options and options.get("include_usage"):
        *chunks, last = chunks
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1]


async def test_usage_grows_chunk_by_chunk_on_demand(
    client: httpx.AsyncClient, script: Script
) -> None:
    script.say(TEXT)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events_of(await client.post(URL, json=body(stream=True, stream_options=options)))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1


async def test_c44_stream_options_are_for_streams(client: httpx.AsyncClient) -> None:
    for stream in (False, None):
        options = {"include_usage": True}
        response = await client.post(URL, json=body(stream=stream, stream_options=options))
        assert response.status_code == 400
        assert error_of(response)["param"] == "stream_options"


async def test_choices_are_told_apart_streamed_or_not(
    client: httpx.AsyncClient, script: Script
) -> None:
    script.answer = lambda submit, index: [300 + index] * (3 + index) + [IM_END]
    asked = body(n=4, seed=11, return_token_ids=True)
    whole = (await client.post(URL, json=asked)).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    streamed: dict[int, list[int]] = defaultdict(list)
    for chunk in events_of(await client.post(URL, json=asked | {"stream": True})):
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["token_ids"]
        assert ("prompt_token_ids" in choice) == (len(streamed[choice["index"]]) == 1)
    assert [choice["token_ids"] for choice in whole["choices"]] == [
        streamed[index] for index in range(4)
    ]
    assert whole["usage"]["completion_tokens"] == 4 + 5 + 6 + 7
    assert whole["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_c76_prompts_times_n_are_numbered_in_order(
    client: httpx.AsyncClient, script: Script, *, stream: bool
) -> None:
    script.answer = lambda submit, index: [300 + index, IM_END]
    prompts = ["one", [300, 301], "three"]
    response = await client.post(URL, json=body(prompt=prompts, n=2, stream=stream, echo=True))
    texts: dict[int, str] = defaultdict(str)
    for answer in events_of(response) if stream else [response.json()]:
        for choice in answer["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {
        0: "oneom",
        1: "oneil",
        2: "omilom",
        3: "omilil",
        4: "threeom",
        5: "threeil",
    }


@pytest.mark.parametrize(
    ("asked", "submitted"), [({}, 16), ({"max_tokens": None}, None), ({"max_tokens": 5}, 5)]
)
async def test_an_absent_max_tokens_is_16_and_null_the_rest(
    client: httpx.AsyncClient,
    connection: FakeEngineConnection,
    asked: dict[str, Any],
    submitted: int | None,
) -> None:
    await client.post(URL, json={"prompt": "Hello", **asked})
    assert connection.submits[0].max_tokens == submitted


async def test_an_absent_max_tokens_shrinks_to_what_fits(
    client: httpx.AsyncClient, connection: FakeEngineConnection
) -> None:
    await client.post(URL, json={"prompt": [300] * 511})
    assert connection.submits[0].max_tokens == 1


async def test_an_echo_alone(client: httpx.AsyncClient, connection: FakeEngineConnection) -> None:
    asked = body(prompt="Q: two plus two? A: four", max_tokens=0, echo=True, logprobs=1)
    answer = (await client.post(URL, json=asked)).json()
    (choice,) = answer["choices"]
    assert choice["text"] == "Q: two plus two? A: four"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value == -9.0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == answer["usage"]["prompt_tokens"]
    asked = body(max_tokens=0, echo=True)
    assert (await client.post(URL, json=asked)).json()["choices"][0]["text"] == "Hello"
    assert len(connection.submits) == 1


async def test_an_echo_comes_before_the_outputs_in_text_and_logprobs(
    client: httpx.AsyncClient, script: Script
) -> None:
    script.say(TEXT)
    asked = body(prompt="Hello there", echo=True, logprobs=2)
    whole = (await client.post(URL, json=asked)).json()["choices"][0]
    assert whole["text"] == "Hello there" + TEXT
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]
    for token, offset in zip(
        whole["logprobs"]["tokens"], whole["logprobs"]["text_offset"], strict=True
    ):
        assert whole["text"][offset:].startswith(token)
    chunks = events_of(await client.post(URL, json=asked | {"stream": True}))
    for part in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [entry for c in chunks for entry in c["choices"][0]["logprobs"][part]]
        assert streamed == whole["logprobs"][part]


@pytest.mark.parametrize("tokens_per_update", [1, 8])
@pytest.mark.parametrize("count", [0, 1, 5])
async def test_c58_logprobs_show_the_sampled_token_and_the_best(
    client: httpx.AsyncClient,
    script: Script,
    connection: FakeEngineConnection,
    count: int,
    tokens_per_update: int,
) -> None:
    ids = script.say(TEXT * 3)
    connection._tokens_per_update = tokens_per_update
    asked = body(logprobs=count, max_tokens=200, stop=["France"])
    answer = (await client.post(URL, json=asked)).json()
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    num_tokens = answer["usage"]["completion_tokens"]
    assert num_tokens < len(ids)
    assert {len(entries) for entries in logprobs.values()} == {num_tokens}
    assert "".join(logprobs["tokens"]) == choice["text"] + "France"
    assert set(logprobs["token_logprobs"]) == {-9.0}
    whole_text = choice["text"] + "France"
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert whole_text[offset:].startswith(token)
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    chunks = events_of(await client.post(URL, json=asked | {"stream": True}))
    for part in logprobs:
        told = [entry for c in chunks for entry in c["choices"][0]["logprobs"][part]]
        assert told == logprobs[part]
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert top[token] == -9.0
        assert len(top) <= count + 1
        best = list(top.values())[1:]
        assert best == sorted(best, reverse=True)


async def test_prompt_logprobs_are_by_token_id(client: httpx.AsyncClient) -> None:
    asked = body(prompt=[300, 301, 302], prompt_logprobs=1, max_tokens=1)
    choice = (await client.post(URL, json=asked)).json()["choices"][0]
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second["301"] == {"logprob": -9.0, "rank": 2, "decoded_token": "il"}
    assert "302" in third
    response = await client.post(URL, json=asked | {"stream": True})
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt_logprobs"


async def test_stop_token_ids_are_the_stop_reason(
    client: httpx.AsyncClient, script: Script
) -> None:
    script.say_ids([300, 301, 302, 303])
    choice = (await client.post(URL, json=body(stop_token_ids=[302]))).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("omil", "stop", 302)
    asked = body(stop_token_ids=[302], include_stop_str_in_output=True)
    assert (await client.post(URL, json=asked)).json()["choices"][0]["text"] == "omilst"
