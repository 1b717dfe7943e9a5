from __future__ import annotations

import pytest

from octavo.wire import generate_request


@pytest.mark.parametrize(("stop", "sent"), [("end", ["end"]), (["a", "b"], ["a", "b"])])
def test_one_stop_string_is_a_list_of_one(stop: str | list[str], sent: list[str]) -> None:
    assert list(generate_request("p", {"stop": stop}).sampling.stop) == sent
