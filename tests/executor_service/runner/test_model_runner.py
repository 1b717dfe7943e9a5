"""Plans in, results out, on a small real model: equal in every company, exact about errors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from common.plan import ErrorCode, SamplingParams, SequenceId, StepPlan, StepResult
from executor_service.runner.model_runner import ModelRunner
from tests.support.plans import GREEDY, add_chunk, make_spec
from tests.support.tiny_llama import VOCAB_SIZE, reference_logits, tiny_model
from tests.support.tiny_runner import Driver, Running, generate

NUM_OUTPUTS = 12


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(10, VOCAB_SIZE - 10), k=length)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 1.0} | fields))


MIXED: list[tuple[list[int], SamplingParams]] = [
    (prompt(33, 1), GREEDY),
    (prompt(5, 2), params(seed=42, temperature=0.8)),
    (prompt(70, 3), params(seed=7, top_p=0.9, top_k=30)),
    (prompt(1, 4), params(seed=2**64 - 1, min_p=0.05)),
    (prompt(16, 5), params(temperature=0.0, repetition_penalty=1.3)),
    (prompt(48, 6), params(seed=3, presence_penalty=1.0, frequency_penalty=0.5)),
    (prompt(20, 7), params(seed=4, min_tokens=8, stop_token_ids=tuple(range(100)))),
    (prompt(17, 8), params(temperature=0.0, logit_bias=((33, 30.0),))),
]


def greedy_by_transformers(tokens: Sequence[int], count: int) -> list[int]:
    model, tokens = tiny_model("llama"), list(tokens)
    for _ in range(count):
        tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
    return tokens[-count:]


def test_greedy_answers_equal_transformers(runner: ModelRunner) -> None:
    prompts = [prompt(length, length) for length in (1, 16, 40)]
    found = generate(runner, [(tokens, GREEDY) for tokens in prompts], NUM_OUTPUTS)
    assert found == [greedy_by_transformers(tokens, NUM_OUTPUTS) for tokens in prompts]


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_every_request_is_the_same_alone_together_and_in_chunks(
    runner: ModelRunner, chunk: int
) -> None:
    alone = [generate(runner, [request], NUM_OUTPUTS)[0] for request in MIXED]
    assert generate(runner, MIXED, NUM_OUTPUTS, chunk=chunk) == alone
    assert generate(runner, MIXED[::-1], NUM_OUTPUTS, chunk=chunk) == alone[::-1]


def test_c25_a_seeded_request_is_the_same_beside_any_neighbour(runner: ModelRunner) -> None:
    request = (prompt(30, 1), params(seed=42, temperature=0.8))
    (alone,) = generate(runner, [request], NUM_OUTPUTS)
    neighbours = [
        [(prompt(9, 2), params(seed=7))],
        [(prompt(9, 2), GREEDY)],
        [(prompt(9, 2), params(seed=42, temperature=0.8))],
        [(prompt(20 + i, i), params(seed=i)) for i in range(5)],
    ]
    for others in neighbours:
        assert generate(runner, [request, *others], NUM_OUTPUTS)[0] == alone
        assert generate(runner, [*others, request], NUM_OUTPUTS)[-1] == alone


def test_c26_a_batch_keeps_the_temperature_of_each_row(runner: ModelRunner) -> None:
    tokens = prompt(12, 1)
    requests = [(tokens, GREEDY), (tokens, params(temperature=1.5, seed=1))]
    alone = [generate(runner, [request], 32)[0] for request in requests]
    assert generate(runner, requests, 32) == alone
    assert alone[0] != alone[1]


def test_c53_penalties_do_not_depend_on_how_the_prompt_was_computed(runner: ModelRunner) -> None:
    """Cold, in three chunks, resumed after losing all KV, and with a cached prefix."""
    sampling = params(temperature=0.0, repetition_penalty=1.3)
    tokens = prompt(48, 9)
    (cold,) = generate(runner, [(tokens, sampling)], NUM_OUTPUTS)
    assert generate(runner, [(tokens, sampling)], NUM_OUTPUTS, chunk=16) == [cold]

    driver = Driver(runner)
    resumed = driver.start(tokens, sampling, NUM_OUTPUTS)
    driver.run([resumed], 5)
    runner.pool.poison(resumed.table)
    resumed.computed = 0
    driver.run([resumed], NUM_OUTPUTS, chunk=20)
    assert resumed.outputs == cold

    cached = driver.start(tokens, sampling, NUM_OUTPUTS)
    runner.pool.copy(resumed.table[:2], cached.table[:2])
    cached.computed = 32
    driver.run([cached], NUM_OUTPUTS)
    assert cached.outputs == cold


def decode_plan(
    step_id: int, known: Sequence[int], start: int, sampling: SamplingParams, num_prompt: int
) -> StepPlan:
    spec = make_spec(1, num_prompt, params=sampling)
    length = 1 if start else len(known)
    return add_chunk(
        StepPlan(step_id=step_id), spec, known, [4, 9], start=start, length=length, samples=[spec]
    )


@pytest.mark.parametrize("sampling", [GREEDY, params(seed=5, frequency_penalty=3.0)])
def test_a_pending_input_is_the_token_of_the_step_before(
    runner: ModelRunner, sampling: SamplingParams
) -> None:
    """Run-ahead: every decode names its input only as "what you just sampled"."""
    tokens = prompt(10, 3)
    (expected,) = generate(runner, [(tokens, sampling)], NUM_OUTPUTS)
    known, found = list(tokens), []
    for step_id in range(NUM_OUTPUTS):
        start = 0 if step_id == 0 else len(tokens) + step_id - 1
        result = runner.execute(decode_plan(step_id, known, start, sampling, len(tokens)))
        assert not result.errors
        if found:
            known.append(found[-1])  # known one step late, as with a step in flight
        found.append(result.tokens[0])
    assert found == expected


def test_samples_are_forgotten_with_the_stream(runner: ModelRunner) -> None:
    tokens = prompt(10, 3)
    runner.execute(decode_plan(0, tokens, 0, GREEDY, 10))
    runner.forget_samples()
    (error,) = runner.execute(decode_plan(1, tokens, 10, GREEDY, 10)).errors
    assert error.code == ErrorCode.INVALID_PLAN


def test_n_choices_of_one_row_are_the_choices_of_n_requests(runner: ModelRunner) -> None:
    tokens, sampling = prompt(20, 1), params(seed=6, temperature=1.3)
    specs = [make_spec(i + 1, 20, index=i, params=sampling) for i in range(4)]
    plan = StepPlan(step_id=0)
    add_chunk(plan, specs[0], tokens, [1, 2], length=20, samples=specs)
    together = runner.execute(plan).tokens.tolist()
    for spec, token in zip(specs, together, strict=True):
        plan = add_chunk(StepPlan(step_id=1), spec, tokens, [5, 6], length=20, samples=[spec])
        assert runner.execute(plan).tokens.tolist() == [token]
    assert len(set(together)) > 1


def test_copies_run_before_the_forward(runner: ModelRunner) -> None:
    """A fork at position 20: its tail block is copied, and both write on independently."""
    tokens = prompt(20, 4)
    (expected,) = generate(runner, [([*tokens, 55], GREEDY)], 1)
    spec = make_spec(1, 20)
    runner.execute(add_chunk(StepPlan(step_id=0), spec, tokens, [0, 1], length=20))
    plan = StepPlan(step_id=1)
    for sequence_id, table in ((1, [0, 1]), (2, [0, 8])):
        fork = make_spec(sequence_id, 20)
        add_chunk(plan, fork, [*tokens, 55], table, start=20, length=1, samples=[fork])
    plan.copy_sources.append(1)
    plan.copy_destinations.append(8)
    assert runner.execute(plan).tokens.tolist() == expected * 2


def test_nothing_of_a_free_block_reaches_an_answer(runner: ModelRunner) -> None:
    """Every block starts as NaN (fixture), and so does the tail of each sequence's last one."""
    first = generate(runner, MIXED, NUM_OUTPUTS)
    runner.pool.poison(range(runner.spec.num_blocks))
    assert generate(runner, MIXED, NUM_OUTPUTS) == first


def test_a_poisoned_history_fails_its_own_sequence(runner: ModelRunner) -> None:
    driver = Driver(runner)
    good, bad = (driver.start(prompt(20, i), GREEDY, NUM_OUTPUTS) for i in range(2))
    (expected,) = generate(runner, [(prompt(20, 0), GREEDY)], NUM_OUTPUTS)
    driver.run([good, bad], 3)
    runner.pool.poison(bad.table[:1])
    driver.run([good, bad], NUM_OUTPUTS)
    assert good.outputs == expected
    assert [error.code for error in bad.errors] == [ErrorCode.NON_FINITE]


def test_c55_ids_beyond_the_vocabulary_leave_the_neighbours_alone(runner: ModelRunner) -> None:
    """Their tokens and, bit by bit, their logprobs are as without the second request."""
    scored = params(temperature=0.0, num_logprobs=20)
    stops = (VOCAB_SIZE + 5, 2**31 - 1, -1)
    wrong = params(temperature=0.0, stop_token_ids=stops, min_tokens=4)
    driver = Driver(runner)

    def step(*numbers: int) -> tuple[StepResult, list[Running]]:
        sequences = [
            driver.start(prompt(10 + i, i), wrong if i == 1 else scored, 1) for i in numbers
        ]
        result = driver.step(sequences, 512)
        for sequence in sequences:
            driver.finish(sequence)
        return result, sequences

    expected, _ = step(0, 2, 3)
    found, sequences = step(0, 1, 2, 3)
    assert [error.code for error in sequences[1].errors] == [ErrorCode.INVALID_PLAN]
    assert not any(sequences[i].errors for i in (0, 2, 3))
    assert expected.logprobs is not None
    assert found.logprobs is not None
    assert [found.logprobs[i] for i in (0, 2, 3)] == list(expected.logprobs)
    assert [found.tokens[i] for i in (0, 2, 3)] == expected.tokens.tolist()


def test_c58_logprobs_are_of_the_sampled_token_whatever_the_sampling(runner: ModelRunner) -> None:
    model = tiny_model("llama")
    for num_logprobs in (0, 1, 5):
        driver = Driver(runner)
        sampling = params(temperature=1.5, seed=8, num_logprobs=num_logprobs, top_k=50)
        asks = driver.start(prompt(9, 1), sampling, 6)
        silent = driver.start(prompt(9, 2), GREEDY, 6)
        while len(asks.outputs) < 6:
            result = driver.step([silent, asks], 512)
            assert result.logprobs is not None
            assert result.logprobs[0] is None
            entry = result.logprobs[1]
            assert entry is not None
            expected = torch.log_softmax(reference_logits(model, asks.tokens[:-1])[-1].double(), 0)
            assert entry.token_ids[0] == asks.tokens[-1]
            assert len(entry.token_ids) == 1 + num_logprobs
            assert list(entry.token_ids[1:]) == expected.topk(num_logprobs).indices.tolist()
            values = [float(expected[token]) for token in entry.token_ids]
            assert entry.logprobs == pytest.approx(values, abs=1e-4)


def test_without_asking_there_are_no_logprobs(runner: ModelRunner) -> None:
    driver = Driver(runner)
    assert driver.step([driver.start(prompt(9, 1), GREEDY, 1)], 512).logprobs is None


@pytest.mark.parametrize("chunk", [512, 16, 5])
def test_prompt_logprobs_cover_every_position_but_the_first(
    runner: ModelRunner, chunk: int
) -> None:
    tokens = prompt(37, 2)
    expected = torch.log_softmax(reference_logits(tiny_model("llama"), tokens).double(), -1)
    driver = Driver(runner)
    sequence = driver.start(tokens, params(temperature=0.0, num_prompt_logprobs=2), 3)
    positions = []
    while len(sequence.outputs) < 3:
        for part in driver.step([sequence], chunk).prompt_logprobs:
            assert part.sequence_id == sequence.spec.sequence_id
            assert part.first_position == len(positions) + 1
            positions += part.positions
    assert len(positions) == len(tokens) - 1
    for i, entry in enumerate(positions):
        best = expected[i].topk(2).indices.tolist()
        assert entry.token_ids == (tokens[i + 1], *best)
        values = [float(expected[i, token]) for token in entry.token_ids]
        assert entry.logprobs == pytest.approx(values, abs=1e-4)


def test_a_prompt_in_progress_samples_nothing(runner: ModelRunner) -> None:
    driver = Driver(runner)
    sequence = driver.start(prompt(40, 1), GREEDY, 1)
    result = driver.step([sequence], 16)
    assert len(result.tokens) == 0
    assert result.timings.forward_ns > 0


def test_an_empty_plan_is_answered(runner: ModelRunner) -> None:
    result = runner.execute(StepPlan(step_id=9))
    assert (result.step_id, len(result.tokens), result.errors) == (9, 0, ())


def test_a_step_of_copies_alone_copies(runner: ModelRunner) -> None:
    runner.execute(add_chunk(StepPlan(step_id=0), make_spec(1, 16), prompt(16, 1), [3], length=16))
    plan = StepPlan(step_id=1)
    plan.copy_sources.append(3)
    plan.copy_destinations.append(5)
    runner.execute(plan)
    blocks = runner.pool.read([3, 5])
    assert torch.equal(blocks[:, :, 0], blocks[:, :, 1])


def test_errors_name_their_sequences(runner: ModelRunner) -> None:
    plan = StepPlan(step_id=1)
    add_chunk(plan, make_spec(5, 3), [1, 2, 3], [500], length=3, samples=[make_spec(5, 3)])
    result = runner.execute(plan)
    assert [error.sequence_id for error in result.errors] == [SequenceId(5)]
    assert result.tokens.tolist() == [0]
