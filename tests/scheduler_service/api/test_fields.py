from __future__ import annotations

from typing import Any

import pytest

from common.errors import InvalidRequestError
from scheduler_service.api.fields import Fields, check_token_ids


@pytest.mark.parametrize("value", [True, 0.5, 1.0, "5", -1, 11, 2**63, [1], {}, float("nan")])
def test_an_integer_is_an_integer_in_range(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Fields({"n": value}).integer("n", 0, 10)
    assert raised.value.field == "n"
    assert "from 0 to 10" in str(raised.value)


@pytest.mark.parametrize(
    "value",
    [True, "0.5", float("nan"), float("inf"), -float("inf"), -0.1, 2.1, 10**400, [], {}],
    ids=range(10),
)
def test_a_number_is_finite_and_in_range(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Fields({"temperature": value}).number("temperature", 0, 2)
    assert raised.value.field == "temperature"


@pytest.mark.parametrize("value", [0, 1, "true", [], 1.0])
def test_a_flag_is_true_or_false(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="true or false"):
        Fields({"stream": value}).flag("stream")


def test_null_is_absent() -> None:
    fields = Fields({"n": None, "t": None, "f": None, "s": None})
    assert fields.integer("n", 1, 2) is None
    assert fields.number("t", 0, 1) is None
    assert fields.flag("f") is None
    assert fields.string("s", max_bytes=1) is None
    assert not fields.has("n")
    assert "n" in fields
    assert "other" not in fields


def test_length_is_counted_in_bytes() -> None:
    assert Fields({"s": "é" * 4}).string("s", max_bytes=8) == "é" * 4
    with pytest.raises(InvalidRequestError, match="longer than 7 bytes"):
        Fields({"s": "é" * 4}).string("s", max_bytes=7)


@pytest.mark.parametrize(
    "value", [[-1], [1000], [1.0], [True], ["1"], "12", 5, {"a": 1}, [[1]], [None]]
)
def test_token_ids_are_of_the_vocabulary(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        check_token_ids(value, 1000, field="prompt")
    assert raised.value.field == "prompt"


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, 10**5000, [0] * 10**5, {"a": "b" * 10**6}, "\x00\ud800\u202e", b"\xff"],
    ids=range(6),
)
def test_an_error_shows_little_of_what_was_sent(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Fields({"n": value}).integer("n", 0, 1)
    assert len(str(raised.value)) < 200
    assert str(raised.value).isascii()
    assert str(raised.value).isprintable()
