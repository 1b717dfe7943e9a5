"""The bytes that a vocabulary entry stands for.

Byte-level vocabularies spell each byte as one printable character: the printable ones of Latin-1
as themselves, the other 68 as the characters from U+0100 on, in order. Byte-fallback vocabularies
write a byte as `<0xE2>` and a space as U+2581.
"""

from __future__ import annotations

import re

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _bytes_by_character() -> dict[str, int]:
    printable = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    others = (byte for byte in range(256) if byte not in printable)
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES_BY_CHARACTER = _bytes_by_character()


def byte_level_bytes(entry: str) -> bytes:
    """Of an entry of a byte-level vocabulary.

    An added token with any character outside the spelling stands for its own text.
    """
    try:
        return bytes([_BYTES_BY_CHARACTER[character] for character in entry])
    except KeyError:
        return entry.encode()


def fallback_byte(entry: str) -> int | None:
    """The byte that a byte-fallback token stands for; None for any other token."""
    match = _BYTE_TOKEN.match(entry)
    return int(match[1], 16) if match else None


def plain_bytes(entry: str) -> bytes:
    """Of an entry of any other vocabulary, apart from its neighbours."""
    byte = fallback_byte(entry)
    return entry.replace("\u2581", " ").encode() if byte is None else bytes([byte])
