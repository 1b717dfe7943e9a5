"""Random traffic with random trouble. One seed is one run: a failure names the seed to repeat."""

from __future__ import annotations

import pytest

from tests.simulation.traffic import Driver

STEPS_PER_SEED = 100


def _run(seed: int) -> None:
    try:
        Driver(seed).run(STEPS_PER_SEED)
    except Exception as error:
        error.add_note(f"seed {seed}: Driver({seed}).run({STEPS_PER_SEED})")
        raise


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_traffic_keeps_every_invariant_and_output(first: int) -> None:
    for seed in range(first, first + 10):
        _run(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_random_traffic_for_a_hundred_thousand_steps(first: int) -> None:
    for seed in range(first, first + 100):
        _run(seed)
