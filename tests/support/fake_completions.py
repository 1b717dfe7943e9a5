"""An HTTP server that streams made-up completions, chunk by chunk, and notes what was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

HEAD = "HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"


class FakeCompletions:
    """Token i of an answer is i. `end_early`: answers stop one token short."""

    def __init__(self, *, end_early: bool = False, status: str = "200 OK") -> None:
        self.bodies: list[dict[str, Any]] = []
        self.resets = 0
        self.running = 0
        self.most_running = 0
        self._missing = int(end_early)
        self._status = status

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            yield f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split()[0])
        body = await reader.readexactly(length)
        if "reset_prefix_cache" in head:
            self.resets += 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        else:
            await self._stream(json.loads(body), writer)
        await writer.drain()
        writer.close()

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        writer.write(HEAD.format(status=self._status).encode())
        for token in range(body["max_tokens"] - self._missing):
            await asyncio.sleep(0)
            event = {"choices": [{"token_ids": [token], "text": "x"}]}
            self._chunk(writer, f"data: {json.dumps(event)}\n\n")
        last = {"choices": [{"text": "", "finish_reason": "length"}]}
        # An event may be cut anywhere, and two may come in one piece.
        self._chunk(writer, f"data: {json.dumps(last)}\n")
        self._chunk(writer, "\ndata: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        self.running -= 1

    def _chunk(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = text.encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
