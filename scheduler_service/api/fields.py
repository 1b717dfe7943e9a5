"""Exact reading of a request's fields: type and range, or an error that says what to send instead.

Rule 1: null is absent. Rule 2: nothing is converted: "5" is no number, true is no 1, 0.5 is no
integer. Rule 3: an error shows a short excerpt of what was sent, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from common.errors import InvalidRequestError

_MAX_SHOWN_CHARS = 60


class Fields:
    """The fields of one JSON object, or of a message spelt as one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._known: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether it was sent at all, null or not."""
        self._known.add(name)
        return name in self._values

    def get(self, name: str) -> Any:
        self._known.add(name)
        return self._values.get(name)

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    @property
    def ignored(self) -> list[str]:
        """What was sent and nobody has asked for so far."""
        return [name for name in self._values if name not in self._known]

    def integer(self, name: str, low: int, high: int, *, remedy: str = "") -> int | None:
        """`remedy` says what else to send, where the range alone does not."""
        value = self.get(name)
        if value is None:
            return None
        return check_integer(value, low, high, field=name, remedy=remedy)

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        return check_number(value, low, high, field=name)

    def flag(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            fail(name, "true or false", value)
        return value

    def string(self, name: str, *, max_bytes: int) -> str | None:
        value = self.get(name)
        if value is None:
            return None
        return check_string(value, max_bytes, field=name)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Fails on the first of these fields that asks for anything; what is empty does not."""
        for name, reason in reasons.items():
            if self.get(name) not in (None, False, "", [], {}):
                raise InvalidRequestError(f"{name} is not supported: {reason}", field=name)

    def refuse_even_empty(self, reasons: Mapping[str, str]) -> None:
        """Fails on the first of these fields that was sent and is not null."""
        for name, reason in reasons.items():
            if self.has(name):
                raise InvalidRequestError(f"{name} is not supported: {reason}", field=name)


def check_integer(value: Any, low: int, high: int, *, field: str, remedy: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        fail(field, f"an integer from {low} to {high}", value, remedy=remedy)
    return value


def check_number(value: Any, low: float, high: float, *, field: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # NaN is in no range
        fail(field, f"a number from {low:g} to {high:g}", value)
    return float(value)


def check_string(value: Any, max_bytes: int, *, field: str) -> str:
    """UTF-8 length is what is limited; a lone surrogate has none."""
    if not isinstance(value, str):
        fail(field, "a string", value)
    if len(value) > max_bytes or len(value.encode(errors="replace")) > max_bytes:
        raise InvalidRequestError(
            f"{field} is longer than {max_bytes} bytes ({len(value)} characters); shorten it",
            field=field,
        )
    return value


def check_token_ids(
    value: Any, vocab_size: int, *, field: str, max_count: int | None = None
) -> list[int]:
    """A list of ids of the vocabulary."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        fail(field, "a list of token ids", value)
    if max_count is not None and len(value) > max_count:
        raise InvalidRequestError(
            f"{field} has {len(value)} entries; at most {max_count} are taken", field=field
        )
    for token_id in value:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            fail(field, f"a list of token ids from 0 to {vocab_size - 1}", token_id)
    return list(value)


def fail(field: str, wanted: str, value: Any, *, remedy: str = "") -> NoReturn:
    message = f"{field} must be {wanted}, not {_excerpt(value)}"
    raise InvalidRequestError(f"{message}; {remedy}" if remedy else message, field=field)


def _excerpt(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer of more than 38 digits"
    if isinstance(value, list | tuple | Mapping):
        article, kind = ("an", "object") if isinstance(value, Mapping) else ("a", "list")
        return f"{article} {kind}" if value else f"an empty {kind}"
    if isinstance(value, str | bytes):
        value = value[: _MAX_SHOWN_CHARS + 1]
    shown = ascii(value)
    return shown if len(shown) <= _MAX_SHOWN_CHARS else shown[:_MAX_SHOWN_CHARS] + "..."
