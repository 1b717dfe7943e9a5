"""What is learned of an executor from the steps it runs."""

from __future__ import annotations

import random

import pytest

from common.step_time import WARM_STEPS, StepTime, StepTimeModel

TRUE = StepTime(6e-3, 6e-4, 2e-7)


class Executor:
    """Takes the true time, give or take a tenth."""

    def __init__(self, seed: int, true: StepTime = TRUE) -> None:
        self.model = StepTimeModel()
        self.true = true
        self._rng = random.Random(seed)

    def run(self, num_tokens: int, num_attended: int, held_up: float = 1.0) -> None:
        noise = self._rng.uniform(0.9, 1.1) * held_up
        took_s = self.true.predict_s(num_tokens, num_attended) * noise
        self.model.observe(num_tokens, num_attended, took_s)

    def run_beside(self, decodes: int, context: int, prompt: int, ratio: float) -> None:
        """A step whose prompt tokens take `ratio` of their true time."""
        alone, whole = (
            (decodes, decodes * context),
            (decodes + prompt, (decodes + prompt) * context),
        )
        alone_s = self.true.predict_s(*alone)
        took_s = alone_s + ratio * (self.true.predict_s(*whole) - alone_s)
        self.model.observe(*whole, took_s * self._rng.uniform(0.95, 1.05), alone)

    def run_prompt(self, length: int, chunk: int) -> None:
        for start in range(0, length, chunk):
            self.run(chunk, chunk * start + chunk * chunk // 2)

    def decode(self, batch: int, context: int, count: int) -> None:
        for i in range(count):
            self.run(batch, batch * (context + i))

    def error(self, num_tokens: int, num_attended: int) -> float:
        assert self.model.fitted is not None
        predicted_s = self.model.fitted.predict_s(num_tokens, num_attended)
        return predicted_s / self.true.predict_s(num_tokens, num_attended) - 1


def used(seed: int) -> Executor:
    executor = Executor(seed)
    for _ in range(4):
        executor.run_prompt(2048, 512)
        executor.decode(1, 2048, 20)
        executor.decode(8, 200, 20)
        executor.decode(32, 500, 20)
    return executor


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("num_tokens", "num_attended"),
    [(1, 300), (8, 8 * 300), (16, 16 * 1000), (40, 8 * 300 + 32 * 500), (512, 512 * 256)],
)
def test_steps_of_every_size_are_predicted(seed: int, num_tokens: int, num_attended: int) -> None:
    assert abs(used(seed).error(num_tokens, num_attended)) < 0.15


def test_nothing_is_known_before_it_is_warm() -> None:
    executor = Executor(1)
    for i in range(WARM_STEPS - 1):
        executor.run(1 + i, 10)
        assert executor.model.fitted is None
    executor.run(1, 10)
    assert executor.model.fitted is not None


def test_what_prompts_cost_is_remembered_through_a_long_time_of_decoding() -> None:
    executor = used(1)
    executor.decode(4, 300, 3000)
    assert abs(executor.error(512, 512 * 256)) < 0.15


def test_steps_that_were_held_up_count_little() -> None:
    executor = used(1)
    for _ in range(3):
        executor.run(8, 8 * 200, held_up=300.0)
    executor.decode(8, 200, 40)
    assert abs(executor.error(8, 8 * 200)) < 0.3


def test_an_executor_that_became_slower_is_learned_anew() -> None:
    executor = used(1)
    executor.true = StepTime(3 * TRUE.step_s, 3 * TRUE.token_s, 3 * TRUE.attended_s)
    for _ in range(6):
        executor.run_prompt(2048, 512)
        executor.decode(8, 200, 60)
    assert abs(executor.error(8, 8 * 220)) < 0.15


@pytest.mark.parametrize("seed", range(5))
def test_no_cost_is_negative(seed: int) -> None:
    rng = random.Random(seed)
    model = StepTimeModel()
    for _ in range(64):
        model.observe(rng.randint(1, 600), rng.randint(600, 100_000), rng.random())
    assert model.fitted is not None
    assert min(model.fitted) >= 0.0


def test_steps_of_one_size_are_predicted_though_their_costs_cannot_be_told_apart() -> None:
    executor = Executor(1)
    executor.decode(8, 200, 64)
    assert abs(executor.error(8, 8 * 230)) < 0.1


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_what_prompts_add_beside_decodes_is_learned_apart(ratio: float) -> None:
    executor = used(2)
    for _ in range(60):
        executor.run_beside(8, 300, 20, ratio)
    fitted = executor.model.fitted
    assert fitted is not None
    added_s = fitted.predict_s(28, 28 * 300) - fitted.predict_s(8, 8 * 300)
    true_s = TRUE.predict_s(28, 28 * 300) - TRUE.predict_s(8, 8 * 300)
    assert fitted.beside * added_s == pytest.approx(ratio * true_s, rel=0.3)


def test_a_step_that_was_held_up_does_not_starve_prompts() -> None:
    executor = used(3)
    executor.run_beside(8, 300, 20, 1000.0)
    assert executor.model.fitted is not None
    assert executor.model.fitted.beside < 1.1
