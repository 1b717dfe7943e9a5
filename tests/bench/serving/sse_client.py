"""A streaming completion over a bare socket.

Client and server share the machine's few cores, and an HTTP library costs the client more time per
token than all of this; what is measured is the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from tests.bench.serving.timeline import Timeline
from tests.bench.serving.workloads import Ask


class ServerFailed(Exception):
    """The server did not answer as it must."""


async def complete(address: str, ask: Ask, timeline: Timeline) -> None:
    """Fills `timeline` as tokens come."""
    body = {
        "prompt": list(ask.prompt),
        "max_tokens": ask.num_outputs,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
    }
    is_done = False
    async for data in events(address, "/v1/completions", json.dumps(body).encode()):
        now = time.perf_counter()
        if data == b"[DONE]":
            is_done = True
            continue
        if b'"error"' in data:
            raise ServerFailed(data.decode())
        for choice in json.loads(data)["choices"]:
            tokens = choice.get("token_ids") or []
            timeline.tokens += tokens
            timeline.arrivals += [now] * len(tokens)
    if not is_done:
        raise ServerFailed("the stream ended early")
    if len(timeline.tokens) != ask.num_outputs:
        raise ServerFailed(f"{len(timeline.tokens)} tokens instead of {ask.num_outputs}")


async def post(address: str, path: str) -> None:
    async for _ in _chunks(address, path, b""):
        pass


async def events(address: str, path: str, body: bytes) -> AsyncIterator[bytes]:
    """What follows `data: ` in each event, up to the end of the answer.

    A server may send comments, which begin with a colon, while it has nothing else to send.
    """
    rest = b""
    async for chunk in _chunks(address, path, body):
        *parts, rest = (rest + chunk).split(b"\n\n")
        for part in parts:
            if not part.startswith(b":"):
                yield part.removeprefix(b"data: ")


async def _chunks(address: str, path: str, body: bytes) -> AsyncIterator[bytes]:
    """The pieces of an answer in chunked transfer coding, or its whole body."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if " 200 " not in head.partition("\r\n")[0]:
            raise ServerFailed(f"{head}{(await reader.read()).decode()}")
        if "transfer-encoding: chunked" not in head.lower():
            yield await reader.read()
            return
        while size := int(await reader.readline(), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    finally:
        writer.close()
