"""The tokenizer's fields of a GGUF file, by their names after `tokenizer.ggml.`."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from common.errors import ModelError

_PREFIX = "tokenizer.ggml."
_SENTENCEPIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}
"""What files of this kind mean that do not say."""
_NONE = 2**32 - 1
"""How converters write -1, for no token, into a field without a sign."""


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


def token_id(fields: dict[str, Any], name: str) -> int | None:
    """Of "unknown", "bos", "eos", "eot" or "eom"; None if the file has no such field, or says none.

    Raises ModelError if the field is the id of no token.
    """
    found = optional_field(fields, f"{name}_token_id")
    return None if found in (None, _NONE) else _checked_id(fields, name, found)


def special_id(fields: dict[str, Any], name: str) -> int:
    """Of "unknown", "bos" or "eos". Raises ModelError if there is none or it is no token."""
    if optional_field(fields, "model") == "llama":
        default = _SENTENCEPIECE_IDS[name]
        return _checked_id(fields, name, optional_field(fields, f"{name}_token_id", default))
    return _checked_id(fields, name, field(fields, f"{name}_token_id"))


def named_ids(fields: dict[str, Any]) -> list[int]:
    """All that `token_id` finds. Raises ModelError if one of them is no token."""
    found = (token_id(fields, name) for name in ("unknown", "bos", "eos", "eot", "eom"))
    return [each for each in found if each is not None]


def _checked_id(fields: dict[str, Any], name: str, found: Any) -> int:
    num_tokens = len(field(fields, "tokens"))
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < num_tokens:
        return found
    raise ModelError(
        f"{_PREFIX}{name}_token_id of the GGUF file is {found!r}, the id of none of its"
        f" {num_tokens} tokens; correct the field or convert the model again"
    )
