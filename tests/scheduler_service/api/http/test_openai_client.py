"""The official client against a real server, unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from common.grpc_server import PortUse
from scheduler_service.api.http.app import build_app
from scheduler_service.api.http.server import HttpServer
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.messages import Refused
from tests.scheduler_service.api.conftest import Script
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import IM_END

MODEL = "smollm2-135m"
TEXT = "Paris 🗼 is the capital of France."


@pytest_asyncio.fixture
async def client(
    config: SchedulerConfig, connection: FakeEngineConnection, chat_model: ServedModel
) -> AsyncIterator[openai.AsyncOpenAI]:
    service = Service(config, connection)  # type: ignore[arg-type]
    service.set_model(chat_model)
    server = HttpServer(
        build_app(service), host="127.0.0.1", port=0, port_use=PortUse.EXCLUSIVE, grace_s=1.0
    )
    await server.start()
    async with openai.AsyncOpenAI(
        base_url=f"http://{server.address}/v1", api_key="none", max_retries=0
    ) as made:
        yield made
    await server.stop()


async def test_models(client: openai.AsyncOpenAI) -> None:
    models = [model.id async for model in client.models.list()]
    assert models == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_completion(client: openai.AsyncOpenAI, script: Script) -> None:
    ids = script.say(TEXT, then=[IM_END])
    answer = await client.completions.create(
        model=MODEL, prompt="Hello", max_tokens=50, n=2, logprobs=1, seed=3, stop=["zzz"]
    )
    assert [choice.text for choice in answer.choices] == [TEXT, TEXT]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens is not None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2 * len(ids)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_completion_stream(client: openai.AsyncOpenAI, script: Script) -> None:
    script.say(TEXT, then=[IM_END])
    stream = await client.completions.create(
        model=MODEL,
        prompt=[5, 6, 7],
        max_tokens=50,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True, "ignore_eos": False, "top_k": 5},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == TEXT
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[0].choices[0].model_extra is not None
    assert chunks[0].choices[0].model_extra["prompt_token_ids"] == [5, 6, 7]


async def test_chat(client: openai.AsyncOpenAI, script: Script) -> None:
    script.say(TEXT, then=[IM_END])
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": [{"type": "text", "text": "Where?"}]}],
        max_completion_tokens=50,
        logprobs=True,
        top_logprobs=2,
    )
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", TEXT)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10


async def test_chat_stream(client: openai.AsyncOpenAI, script: Script) -> None:
    script.say(TEXT, then=[IM_END])
    async with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "Where?"}]
    ) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.choices[0].finish_reason == "stop"


async def test_errors_are_the_clients_own_classes(
    client: openai.AsyncOpenAI, connection: FakeEngineConnection
) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model=MODEL, prompt="a", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        await client.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    connection.refusal = lambda submit: Refused(1, "queue_full", "", "full", 2.0)
    with pytest.raises(openai.RateLimitError) as full:
        await client.completions.create(model=MODEL, prompt="a", stream=True)
    assert full.value.response.headers["retry-after"] == "2"


async def test_an_error_in_mid_stream_is_raised(
    client: openai.AsyncOpenAI, connection: FakeEngineConnection
) -> None:
    connection.expires_at = 3
    stream = await client.completions.create(model=MODEL, prompt="a", max_tokens=50, stream=True)
    with pytest.raises(openai.APIError, match="deadline"):
        async for _ in stream:
            pass


async def test_leaving_a_stream_aborts_it(
    client: openai.AsyncOpenAI, connection: FakeEngineConnection, script: Script
) -> None:
    script.say_ids([300] * 400)
    stream = await client.completions.create(model=MODEL, prompt="a", max_tokens=400, stream=True)
    connection.may_step.clear()
    await anext(aiter(stream))
    await stream.close()
    async with openai.AsyncOpenAI(base_url=str(client.base_url), api_key="x") as other:
        while connection.num_live:
            await other.models.list()
    assert len(connection.aborts) == 1
