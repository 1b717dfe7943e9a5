from __future__ import annotations

import asyncio

from tests.bench.serving.sse_client import events


async def received(*pieces: bytes) -> list[bytes]:
    """What the client makes of an answer whose chunks these are."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return [data async for data in events(f"127.0.0.1:{port}", "/", b"")]


def test_events_are_told_apart_wherever_chunks_end() -> None:
    assert asyncio.run(received(b"data: a\n\nda", b"ta: b\n", b"\n")) == [b"a", b"b"]


def test_comments_that_keep_a_connection_alive_are_no_events() -> None:
    assert asyncio.run(received(b":\n\n", b"data: a\n\n: ping\n\n")) == [b"a"]
