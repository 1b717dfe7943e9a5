from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.bench.serving.peers.llama_server import UNTOLD, complete, read_event
from tests.bench.serving.sse_client import ServerFailed
from tests.bench.serving.timeline import Timeline
from tests.bench.serving.workloads import Ask


def event(num_predicted: int, *tokens: int, stop: bool = False) -> bytes:
    body = {"tokens_predicted": num_predicted, "tokens": tokens, "content": "x", "stop": stop}
    return json.dumps(body).encode()


def read(*events: bytes) -> Timeline:
    timeline = Timeline(0.0)
    for at, data in enumerate(events, start=1):
        read_event(data, float(at), timeline)
    return timeline


def test_each_event_brings_its_token() -> None:
    timeline = read(event(1, 7), event(2, 8), event(2, stop=True))
    assert (timeline.tokens, timeline.arrivals) == ([7, 8], [1.0, 2.0])


def test_tokens_held_back_within_a_character_arrive_with_the_one_that_ends_it() -> None:
    timeline = read(event(1, 7), event(4, 9))
    assert timeline.tokens == [7, UNTOLD, UNTOLD, 9]
    assert timeline.arrivals == [1.0, 2.0, 2.0, 2.0]


def test_the_last_event_may_bring_tokens_and_tell_all_of_them() -> None:
    assert read(event(1, 7), event(2, stop=True)).tokens == [7, UNTOLD]
    assert read(event(1, 7), event(2, 7, 8, stop=True)).tokens == [7, 8]


def test_an_error_ends_the_run() -> None:
    with pytest.raises(ServerFailed, match="too long"):
        read(b'{"error": {"message": "too long"}}')


async def answer(asked: list[dict[str, Any]], *events: bytes) -> Timeline:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("post /completion ")
        length = int(head.partition("content-length:")[2].split()[0])
        asked.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for data in events:
            piece = b"data: " + data + b"\n\n"
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        timeline = Timeline(0.0)
        await complete(f"{host}:{port}", Ask(prompt=(5, 6), num_outputs=2), timeline)
    return timeline


async def test_it_is_asked_for_a_fixed_number_of_greedy_tokens_by_ids() -> None:
    asked: list[dict[str, Any]] = []
    timeline = await answer(asked, event(1, 7), event(2, 8), event(2, stop=True))
    assert timeline.tokens == [7, 8]
    (body,) = asked
    assert (body["prompt"], body["n_predict"]) == ([5, 6], 2)
    assert (body["ignore_eos"], body["temperature"], body["stream"]) == (True, 0, True)


async def test_a_short_answer_is_a_failure() -> None:
    with pytest.raises(ServerFailed, match="1 tokens instead of 2"):
        await answer([], event(1, 7), event(1, stop=True))
