"""One HTTP request over a socket of its own, which can be closed at any byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class RawHttpClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def post(cls, address: str, *, limit: int = 1 << 16, **body: Any) -> RawHttpClient:
        """To /v1/completions at host:port. `limit`: bytes that are read before somebody asks."""
        host, _, port = address.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port), limit=limit))
        content = json.dumps({"prompt": "Hello", "ignore_eos": True, **body}).encode()
        client._writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (len(content), content)
        )
        await client._writer.drain()
        return client

    async def read_to(self, end: bytes) -> bytes:
        answer = b""
        while not answer.endswith(end):
            part = await self.reader.read(1 << 16)
            assert part, answer[-200:]
            answer += part
        return answer

    async def leave(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
