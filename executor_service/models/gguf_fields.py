"""The tokenizer's fields of a GGUF file, by their names after `tokenizer.ggml.`."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from common.errors import ModelError

_PREFIX = "tokenizer.ggml."
_SENTENCEPIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}
"""What files of this kind mean that do not say."""


class TokenType(IntEnum):
    """What the field `token_type` says of each token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    """That a user may write, e.g. <think>."""
    UNUSED = 5
    BYTE = 6


def field(fields: dict[str, Any], name: str) -> Any:
    """Raises ModelError if the file has no such field."""
    if _PREFIX + name not in fields:
        raise ModelError(f"the GGUF file has no field {_PREFIX + name!r}")
    return fields[_PREFIX + name]


def optional_field(fields: dict[str, Any], name: str, default: Any = None) -> Any:
    return fields.get(_PREFIX + name, default)


def special_id(fields: dict[str, Any], name: str) -> int:
    """Of "unknown", "bos" or "eos". Raises ModelError if there is none or it is no token."""
    key = f"{name}_token_id"
    if _PREFIX + key not in fields and optional_field(fields, "model") == "llama":
        found = _SENTENCEPIECE_IDS[name]
    else:
        found = int(field(fields, key))
    if not 0 <= found < len(field(fields, "tokens")):
        raise ModelError(f"{_PREFIX + key} of the GGUF file is {found}, which is no token")
    return found
