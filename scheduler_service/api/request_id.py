"""Ids that clients choose: short and printable ASCII, since they go into logs and headers."""

from __future__ import annotations

MAX_ID_CHARS = 128


def is_acceptable_id(text: str) -> bool:
    return 0 < len(text) <= MAX_ID_CHARS and text.isascii() and text.isprintable()
