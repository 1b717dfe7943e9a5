from __future__ import annotations

import json

import numpy as np
import pytest

from common.philox import Purpose, philox4x32, uniforms
from tests.common.write_philox_vectors import VECTORS, vectors

# Known answers of the Random123 distribution (kat_vectors, philox4x32-10).
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert philox4x32(counter, key).tolist() == expected


def test_a_batch_gives_what_single_draws_give() -> None:
    counters = np.array([counter for counter, _, _ in KNOWN], np.uint32)
    keys = np.array([key for _, key, _ in KNOWN], np.uint32)
    assert philox4x32(counters, keys).tolist() == [expected for _, _, expected in KNOWN]


def test_committed_vectors_hold_for_the_layout_of_key_and_counter() -> None:
    committed = json.loads(VECTORS.read_text())
    assert len(committed) >= 10
    for vector in committed:
        draw = uniforms(
            [int(vector["seed"])],
            [vector["position"]],
            [vector["index"]],
            Purpose(vector["purpose"]),
        )
        assert draw.dtype == np.float32
        assert draw.tolist() == [vector["uniform_times_2_24"] / 2**24]


def test_committed_vectors_are_fresh() -> None:
    assert json.loads(VECTORS.read_text()) == vectors()


def test_uniforms_are_below_one_and_spread_evenly() -> None:
    draws = uniforms([7] * 100_000, np.arange(100_000), np.zeros(100_000), Purpose.SAMPLE)
    assert draws.min() >= 0 and draws.max() < 1
    counts, _ = np.histogram(draws, bins=10, range=(0, 1))
    # Ten bins of 10,000 +- 95; seven sigma.
    assert np.abs(counts - 10_000).max() < 665


def test_seeds_of_any_integer_type_and_none_at_all() -> None:
    assert uniforms([], [], [], Purpose.SAMPLE).shape == (0,)
    as_numpy = uniforms(np.array([2**64 - 1], np.uint64), [3], [0], Purpose.SAMPLE)
    assert as_numpy == uniforms([2**64 - 1], [3], [0], Purpose.SAMPLE)
