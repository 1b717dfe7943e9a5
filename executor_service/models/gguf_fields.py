"""The tokenizer's fields of a GGUF file, by their names after `tokenizer.ggml.`."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from common.errors import ModelError

_PREFIX = "tokenizer.ggml."
_SENTENCEPIECE_UNKNOWN = 0
_SENTENCEPIECE_ENDS = {"bos": 1, "eos": 2}
"""What files of this kind mean that do not say."""
_NONE = (None, -1, 2**32 - 1)
"""For no token: converters write -1, also into a field without a sign."""


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
    return _id_of(fields, name, optional_field(fields, f"{name}_token_id"))


def end_id(fields: dict[str, Any], name: str) -> int | None:
    """Of "bos" or "eos"; None if the file says none.

    Raises ModelError if the field is the id of no token, or is missing where it has no default.
    """
    if optional_field(fields, "model") == "llama":
        default = _SENTENCEPIECE_ENDS[name]
        return _id_of(fields, name, optional_field(fields, f"{name}_token_id", default))
    return _id_of(fields, name, field(fields, f"{name}_token_id"))


def sentencepiece_unknown_id(fields: dict[str, Any]) -> int:
    """Always one: also where the file says none. Raises ModelError if it is no token."""
    found = token_id(fields, "unknown")
    return _checked_id(fields, "unknown", _SENTENCEPIECE_UNKNOWN) if found is None else found


def named_ids(fields: dict[str, Any]) -> list[int]:
    """All that `token_id` finds. Raises ModelError if one of them is no token."""
    found = (token_id(fields, name) for name in ("unknown", "bos", "eos", "eot", "eom"))
    return [each for each in found if each is not None]


def _id_of(fields: dict[str, Any], name: str, found: Any) -> int | None:
    return None if found in _NONE else _checked_id(fields, name, found)


def _checked_id(fields: dict[str, Any], name: str, found: Any) -> int:
    num_tokens = len(field(fields, "tokens"))
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < num_tokens:
        return found
    raise ModelError(
        f"{_PREFIX}{name}_token_id of the GGUF file is {found!r}, the id of none of its"
        f" {num_tokens} tokens; correct the field or convert the model again"
    )
