from __future__ import annotations

import pytest

from tests.bench.serving.transformers_side import TransformersSide
from tests.bench.serving.workloads import Ask, Interruption, Workload
from tests.support.tiny_llama import tiny_model

ASKS = tuple(
    Ask(prompt=tuple(range(3 + number, 3 + 4 * number + 3)), num_outputs=9 - 2 * number)
    for number in range(4)
)


@pytest.fixture(scope="module")
def side() -> TransformersSide:
    return TransformersSide(tiny_model("llama"))


def test_a_batch_does_not_change_an_answer(side: TransformersSide) -> None:
    workload = Workload(name="W", asks=ASKS, concurrency=4)
    together = side.run(workload, 4)
    alone = side.run(workload, 1)
    assert [a.tokens for a in together.answers] == [a.tokens for a in alone.answers]


def test_each_answer_has_its_own_length_and_a_time_per_token(side: TransformersSide) -> None:
    outcome = side.run(Workload(name="W", asks=ASKS, concurrency=4), 2)
    assert [len(a.tokens) for a in outcome.answers] == [9, 7, 5, 3]
    for answer in outcome.answers:
        assert len(answer.arrivals) == len(answer.tokens)
        assert answer.issued_at < answer.first_at
        assert answer.arrivals == sorted(answer.arrivals)


def test_a_late_prompt_waits_for_the_batch(side: TransformersSide) -> None:
    late = Interruption(ask=Ask(prompt=(5, 6, 7), num_outputs=4), after_outputs=2)
    workload = Workload(name="W", asks=ASKS, concurrency=4, interruption=late)
    outcome = side.run(workload, 4)
    assert outcome.late is not None
    assert outcome.late.issued_at == max(a.arrivals[1] for a in outcome.answers)
    assert outcome.late.first_at > max(a.last_at for a in outcome.answers)
    assert len(outcome.late.tokens) == 4
