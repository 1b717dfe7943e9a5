"""Frames of the local socket: a u32 little-endian length, then one msgpack value."""

from __future__ import annotations

import asyncio
import struct

from common.errors import TooLargeError

MAX_FRAME_BYTES = 256 << 20

_LENGTH = struct.Struct("<I")


def frame(payload: bytes) -> bytes:
    if len(payload) > MAX_FRAME_BYTES:
        raise TooLargeError(f"a frame of {len(payload)} bytes; the limit is {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next payload; None once the peer is gone, even in the middle of a frame."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise TooLargeError(f"a frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
