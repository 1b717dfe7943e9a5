from __future__ import annotations

import pytest

from common.errors import InvalidRequestError
from octavo.wire import generate_request


@pytest.mark.parametrize(("stop", "sent"), [("end", ["end"]), (["a", "b"], ["a", "b"])])
def test_one_stop_string_is_a_list_of_one(stop: str | list[str], sent: list[str]) -> None:
    assert list(generate_request("p", {"stop": stop}).sampling.stop) == sent


@pytest.mark.parametrize(("name", "value"), [("max_tokens", -1), ("n", 2**32), ("top_k", 2**31)])
def test_an_integer_out_of_range_is_told_the_range(name: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{name} must be an integer from -?\d+ to \d+"):
        generate_request("p", {name: value})  # type: ignore[misc]
