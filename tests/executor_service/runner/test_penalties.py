"""Which logits each rule changes, and by how much (prompt [7, 7, 7, 9], outputs [5, 5])."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from common.plan import SamplingParams
from executor_service.runner.penalties import adjust, adjusts

HISTORY = array("i", [7, 7, 7, 9, 5, 5])
NUM_PROMPT = 4


def changes(**fields: Any) -> dict[int, tuple[float, float]]:
    """Token -> (before, after) of every logit that moved."""
    before = np.linspace(-3, 3, 12, dtype=np.float32)
    after = before.copy()
    adjust(after, SamplingParams(**fields), HISTORY, NUM_PROMPT)
    moved = np.flatnonzero(before != after)
    return {int(i): (float(before[i]), float(after[i])) for i in moved}


def test_c52_repetition_changes_each_seen_token_once_by_its_sign() -> None:
    moved = changes(repetition_penalty=2.0)
    assert set(moved) == {5, 7, 9}
    for before, after in moved.values():
        assert after == pytest.approx(before / 2 if before > 0 else before * 2)


def test_c52_presence_looks_at_outputs_alone_and_once() -> None:
    moved = changes(presence_penalty=1.5)
    assert set(moved) == {5}
    assert moved[5][1] == pytest.approx(moved[5][0] - 1.5)


def test_c52_frequency_counts_outputs() -> None:
    moved = changes(frequency_penalty=0.5)
    assert set(moved) == {5}
    assert moved[5][1] == pytest.approx(moved[5][0] - 2 * 0.5)


@pytest.mark.parametrize(
    ("fields", "outputs", "expected"),
    [
        ({"repetition_penalty": 2.0}, [], {7, 9}),
        ({"repetition_penalty": 2.0}, [5], {5, 7, 9}),
        ({"presence_penalty": 1.5}, [], set()),
        ({"presence_penalty": 1.5}, [5], {5}),
        ({"frequency_penalty": 0.5}, [], set()),
        ({"frequency_penalty": 0.5}, [5], {5}),
    ],
)
def test_c52_the_first_step_has_a_prompt_and_the_second_an_output(
    fields: dict[str, float], outputs: list[int], expected: set[int]
) -> None:
    before = np.linspace(-3, 3, 12, dtype=np.float32)
    after = before.copy()
    adjust(after, SamplingParams(**fields), array("i", [*HISTORY[:4], *outputs]), NUM_PROMPT)  # type: ignore[arg-type]
    assert set(np.flatnonzero(before != after).tolist()) == expected


def test_bias_comes_before_repetition() -> None:
    before, after = changes(repetition_penalty=2.0, logit_bias=((5, 10.0),))[5]
    assert after == pytest.approx((before + 10) / 2)


def test_repetition_comes_before_presence_and_frequency() -> None:
    sampling = {"repetition_penalty": 2.0, "presence_penalty": 1.0, "frequency_penalty": 0.25}
    before, after = changes(**sampling)[5]
    assert after == pytest.approx(before * 2 - 1.0 - 0.5)


def test_the_mask_comes_last_and_is_absolute() -> None:
    moved = changes(min_tokens=3, stop_token_ids=(2, 5), logit_bias=((2, 100.0),))
    assert moved[2][1] == moved[5][1] == -np.inf
    assert not changes(min_tokens=2, stop_token_ids=(2, 5))


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": ((1, 1.0),)},
        {"min_tokens": 3, "stop_token_ids": (1,)},
    ],
)
def test_rules_that_change_something_say_so(fields: dict[str, Any]) -> None:
    assert adjusts(SamplingParams(**fields), num_outputs=2)
    assert changes(**fields)


def test_rules_that_change_nothing_say_so() -> None:
    assert not adjusts(SamplingParams(), num_outputs=0)
    assert not adjusts(SamplingParams(min_tokens=3), num_outputs=0)
    assert not adjusts(SamplingParams(min_tokens=3, stop_token_ids=(1,)), num_outputs=3)
