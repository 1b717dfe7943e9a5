"""A whole Octavo as `octavo up` starts it, spoken to as its users do."""

from __future__ import annotations

import io
import json
from typing import Any

import grpc
import httpx
import openai
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from octavo import Client, Delta, Message, SyncClient
from octavo.__main__ import main
from tests.support.up_process import UpProcess

PROMPT = "The capital of France is"
QUESTION = "Name three rivers."

pytestmark = pytest.mark.timeout(300)
"""Of each test with its share of the stack's start."""


@pytest.fixture(scope="module")
def greedy(up: UpProcess) -> str:
    """The greedy continuation of PROMPT, by plain HTTP."""
    reply = httpx.post(
        f"{up.http}/v1/completions",
        json={"model": "smollm2-135m", "prompt": PROMPT, "max_tokens": 16, "temperature": 0},
        timeout=60,
    )
    assert reply.status_code == 200, reply.text
    text = reply.json()["choices"][0]["text"]
    assert "Paris" in text
    return str(text)


def test_ready_means_that_health_ready_is_200(up: UpProcess) -> None:
    assert httpx.get(f"{up.http}/health/ready", timeout=10).status_code == 200
    assert httpx.get(f"{up.http}/health", timeout=10).status_code == 200


def test_the_official_client_gets_the_same_text_whole_and_streamed(
    up: UpProcess, greedy: str
) -> None:
    with openai.OpenAI(base_url=f"{up.http}/v1", api_key="none", timeout=60) as client:
        assert [model.id for model in client.models.list()] == ["smollm2-135m"]
        whole = client.completions.create(
            model="smollm2-135m", prompt=PROMPT, max_tokens=16, temperature=0
        )
        streamed = client.completions.create(
            model="smollm2-135m", prompt=PROMPT, max_tokens=16, temperature=0, stream=True
        )
        assert whole.choices[0].text == greedy
        assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == greedy


def test_the_official_client_chats_whole_and_streamed(up: UpProcess) -> None:
    turn: Any = {"role": "user", "content": QUESTION}
    with openai.OpenAI(base_url=f"{up.http}/v1", api_key="none", timeout=60) as client:
        whole = client.chat.completions.create(
            model="smollm2-135m", messages=[turn], max_tokens=16, temperature=0
        )
        chunks = list(
            client.chat.completions.create(
                model="smollm2-135m",
                messages=[turn],
                max_tokens=16,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert whole.choices[0].message.content
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].usage
    assert whole.usage
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_grpc_streams_the_same_text(up: UpProcess, greedy: str) -> None:
    async with Client(up.grpc) as client:
        deltas = [
            chunk
            async for chunk in client.generate(PROMPT, max_tokens=16, temperature=0.0)
            if isinstance(chunk, Delta)
        ]
    assert "".join(delta.text for delta in deltas) == greedy
    assert len(deltas) > 3


async def test_what_the_server_says_of_itself_fits_its_flags(up: UpProcess) -> None:
    async with Client(up.grpc) as client:
        model = await client.model_info()
        server = await client.server_info()
        ids = await client.tokenize(PROMPT)
        assert await client.detokenize(ids) == PROMPT
        turn = [Message(role="user", content=QUESTION)]
        assert QUESTION in await client.detokenize(
            await client.tokenize(turn), skip_special_tokens=False
        )
    assert (model.model, model.dtype, model.has_chat_template) == ("smollm2-135m", "float32", True)
    assert server.ready
    assert (server.num_executors, server.num_blocks, server.max_num_seqs) == (1, 1024, 32)


def test_choices_of_one_request_differ_and_repeat_under_its_seed(up: UpProcess) -> None:
    with SyncClient(up.grpc) as client:
        first = client.generate_text(PROMPT, n=2, seed=11, temperature=1.0, max_tokens=12)
        again = client.generate_text(PROMPT, n=2, seed=11, temperature=1.0, max_tokens=12)
    texts = [choice.token_ids for choice in first.choices]
    assert texts[0] != texts[1]
    assert [choice.token_ids for choice in again.choices] == texts


def test_reflection_lists_the_services_of_both(up: UpProcess) -> None:
    assert "octavo.inference.v1.Inference" in services_at(up.grpc)
    (executor,) = up.executor_addresses()
    assert any(name.endswith(".Executor") for name in services_at(executor))


def services_at(address: str) -> list[str]:
    with grpc.insecure_channel(address) as channel:
        names = list(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert "grpc.health.v1.Health" in names
    return names


def test_generate_prints_the_same_text(
    up: UpProcess, greedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--max-tokens=16", "--temperature=0"]
    assert main(["generate", PROMPT, "--server", up.grpc, *flags]) == 0
    out, err = capsys.readouterr()
    assert out == greedy + "\n"
    assert "16 tokens" in err


def test_chat_remembers_the_conversation(
    up: UpProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("My name is Zoe.\nWhat is my name?\n"))
    flags = ["--max-tokens=24", "--temperature=0"]
    assert main(["chat", "--server", up.grpc, *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("TTFT") == 2
    assert "Zoe" in out.split("tokens]")[1]


def test_an_invalid_request_is_named_and_harms_nobody(up: UpProcess, greedy: str) -> None:
    bad = httpx.post(
        f"{up.http}/v1/completions",
        json={"model": "smollm2-135m", "prompt": PROMPT, "temperature": -1},
        timeout=60,
    )
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "temperature"
    with SyncClient(up.grpc) as client:
        assert client.generate_text(PROMPT, max_tokens=16, temperature=0.0).text == greedy


def test_server_sent_events_end_with_done(up: UpProcess) -> None:
    body = {"model": "smollm2-135m", "prompt": PROMPT, "max_tokens": 4, "stream": True}
    with httpx.stream("POST", f"{up.http}/v1/completions", json=body, timeout=60) as reply:
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["object"] == "text_completion" for event in events[:-1])
