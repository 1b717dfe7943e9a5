"""return_tokens_as_token_ids: logprobs call every token by its id, on both routes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from scheduler_service.api.http.app import build_app
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service
from scheduler_service.config import SchedulerConfig
from tests.scheduler_service.api.conftest import Script
from tests.scheduler_service.api.http.events import error_of, events_of
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import IM_END

TEXT = " Paris 🗼 is the capital of France."
IDS = {"return_tokens_as_token_ids": True}


def body(**changes: Any) -> dict[str, Any]:
    return {"prompt": "Hello there", "max_tokens": 50, "logprobs": 1, **changes}


async def test_completions_name_ids_before_and_after_the_prompts_end(
    client: httpx.AsyncClient, script: Script
) -> None:
    ids = script.say(TEXT)
    asked = body(echo=True, return_token_ids=True)
    by_text = (await client.post("/v1/completions", json=asked)).json()["choices"][0]
    by_id = (await client.post("/v1/completions", json=asked | IDS)).json()["choices"][0]
    names = [f"token_id:{token_id}" for token_id in [*by_id["prompt_token_ids"], *ids]]
    assert by_id["logprobs"]["tokens"] == names
    assert by_id["text"] == by_text["text"]
    for part in ("text_offset", "token_logprobs"):
        assert by_id["logprobs"][part] == by_text["logprobs"][part]
    for name, top in zip(names[1:], by_id["logprobs"]["top_logprobs"][1:], strict=True):
        assert list(top) == [name, "token_id:100"]
    chunks = events_of(await client.post("/v1/completions", json=asked | IDS | {"stream": True}))
    streamed = [name for c in chunks for name in c["choices"][0]["logprobs"]["tokens"]]
    assert streamed == names


async def test_chats_name_ids_and_keep_the_bytes(
    config: SchedulerConfig,
    connection: FakeEngineConnection,
    chat_model: ServedModel,
    script: Script,
) -> None:
    ids = script.say(TEXT, then=[IM_END])
    service = Service(config, connection)  # type: ignore[arg-type]
    service.set_model(chat_model)
    transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
    asked = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 1}
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as client:
        answer = (await client.post("/v1/chat/completions", json=asked | IDS)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{token_id}" for token_id in ids]
    assert {entry["top_logprobs"][0]["token"] for entry in content} == {"token_id:100"}
    assert bytes(byte for entry in content[:-1] for byte in entry["bytes"]).decode() == TEXT


@pytest.mark.parametrize("value", [1, "yes"])
async def test_it_is_true_or_false(client: httpx.AsyncClient, value: Any) -> None:
    asked = body(return_tokens_as_token_ids=value)
    response = await client.post("/v1/completions", json=asked)
    assert response.status_code == 400
    assert error_of(response)["param"] == "return_tokens_as_token_ids"
