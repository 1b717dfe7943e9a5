"""A wrong plan costs the wrong sequences their step, and nobody else anything."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from common.plan import ErrorCode, SamplingParams, SequenceId, SequenceSpec, StepPlan
from executor_service.runner.model_runner import ModelRunner
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.validate import CheckedPlan, LastSamples, PlanChecker
from tests.support.plans import GREEDY, add_chunk, make_spec

SPEC = ExecutorSpec(
    fingerprint="f",
    model_name="m",
    block_size=16,
    num_blocks=20,
    max_rows=16,
    max_chunks=8,
    max_model_len=200,
    max_num_batched_tokens=100,
    vocab_size=320,
    kv_bytes_per_token=1,
    dtype="float32",
    kv_cache_dtype="float32",
    device="cpu",
    weights_bytes=1,
    kv_bytes=1,
)
GOOD, BAD = SequenceId(1), SequenceId(2)


def check(plan: StepPlan, last: LastSamples | None = None) -> CheckedPlan:
    return PlanChecker(SPEC).check(plan, last or LastSamples())


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 1.0} | fields))


def plan_with(
    tokens: list[int] | None = None,
    table: list[int] | None = None,
    start: int = 0,
    length: int = 20,
    sampling: SamplingParams = GREEDY,
) -> StepPlan:
    """A good sequence and one with the given parts."""
    plan = StepPlan(step_id=1)
    good, bad = make_spec(1, 20), make_spec(2, 20, params=sampling)
    add_chunk(plan, good, range(20), [0, 1], length=20, samples=[good])
    tokens = list(range(20)) if tokens is None else tokens
    table = [2, 3] if table is None else table
    return add_chunk(plan, bad, tokens, table, start=start, length=length, samples=[bad])


def test_a_right_plan_has_no_findings() -> None:
    checked = check(plan_with())
    assert checked.chunks == [0, 1]
    assert not checked.errors


WRONG_CHUNKS: dict[str, dict[str, Any]] = {
    "token above the vocabulary": {"tokens": [*range(19), 320]},
    "negative token": {"tokens": [-1, *range(19)]},
    "too few tokens": {"tokens": list(range(10))},
    "two tokens missing": {"tokens": list(range(18))},
    "block above the pool": {"table": [2, 20]},
    "negative block": {"table": [-1, 3]},
    "table too short": {"table": [2]},
    "empty table": {"table": []},
    "negative start": {"start": -1},
    "empty chunk": {"length": 0},
    "negative length": {"length": -5},
    "beyond max_model_len": {"tokens": [1] * 201, "table": list(range(2, 16)), "start": 190},
    "beyond the token budget": {"tokens": [1] * 90, "table": list(range(2, 9)), "length": 90},
    "writes a block of another": {"table": [2, 1]},
}
WRONG_PARAMS: dict[str, SamplingParams] = {
    "stop id above the vocabulary": params(stop_token_ids=(5, 325), min_tokens=4),
    "stop id of 2^31 - 1": params(stop_token_ids=(2**31 - 1,)),
    "negative stop id": params(stop_token_ids=(-1,)),
    "bias id above the vocabulary": params(logit_bias=((320, 1.0),)),
    "negative bias id": params(logit_bias=((-3, 1.0),)),
    "bias is not a number": params(logit_bias=((3, float("nan")),)),
    "infinite bias": params(logit_bias=((3, float("inf")),)),
    "temperature is not a number": params(temperature=float("nan")),
    "negative temperature": params(temperature=-1.0),
    "top_p of 0": params(top_p=0.0),
    "top_p above 1": params(top_p=1.5),
    "min_p above 1": params(min_p=1.5),
    "negative top_k": params(top_k=-2),
    "repetition penalty of 0": params(repetition_penalty=0.0),
    "infinite penalty": params(frequency_penalty=float("inf")),
    "negative number of logprobs": params(num_logprobs=-1),
}


@pytest.mark.parametrize("name", WRONG_CHUNKS)
def test_a_wrong_chunk_does_not_run(name: str) -> None:
    checked = check(plan_with(**WRONG_CHUNKS[name]))
    assert checked.errors[BAD].code == ErrorCode.INVALID_PLAN
    assert 1 not in checked.chunks
    if name != "writes a block of another":
        assert GOOD not in checked.errors
        assert checked.chunks == [0]


@pytest.mark.parametrize("name", WRONG_PARAMS)
def test_wrong_parameters_fail_the_sample_but_its_keys_are_still_computed(name: str) -> None:
    checked = check(plan_with(sampling=WRONG_PARAMS[name]))
    assert set(checked.errors) == {BAD}
    assert checked.chunks == [0, 1]


def test_two_writers_of_one_block_both_fail() -> None:
    assert set(check(plan_with(table=[2, 1])).errors) == {GOOD, BAD}


def test_a_reader_of_a_block_that_is_being_written_fails_with_its_writer() -> None:
    plan = plan_with(tokens=[1] * 33, table=[2, 1, 3], start=32, length=1)
    assert set(check(plan).errors) == {GOOD, BAD}
    assert check(plan).chunks == []


def test_a_reader_is_right_beside_a_writer_that_does_not_run() -> None:
    plan = StepPlan(step_id=1)
    add_chunk(plan, make_spec(1, 20), range(20), [0, 20], length=20)
    add_chunk(plan, make_spec(2, 20), [1] * 33, [2, 0, 3], start=32, length=1)
    assert set(check(plan).errors) == {GOOD}


def test_shared_blocks_that_nobody_writes_are_right() -> None:
    plan = StepPlan(step_id=1)
    for i in (1, 2):
        add_chunk(plan, make_spec(i, 20), [1] * 33, [7, 8, 8 + i], start=32, length=1)
    checker = PlanChecker(SPEC)
    assert not checker.check(plan, LastSamples()).errors
    checker.check(plan_with(table=[7, 8]), LastSamples())
    assert not checker.check(plan, LastSamples()).errors


def test_a_sequence_with_two_chunks_fails() -> None:
    plan = plan_with()
    add_chunk(plan, plan.sequences[1], range(20), [4, 5], length=20)
    assert set(check(plan).errors) == {BAD}
    assert check(plan).chunks == [0]


def test_a_sequence_sampled_twice_fails() -> None:
    plan = plan_with()
    plan.sampled.append(plan.sampled[1])
    plan.num_samples[1] = 2
    assert set(check(plan).errors) == {BAD}


def test_a_wrong_history_fails_only_who_reads_it() -> None:
    history = [400, *range(19)]
    wrong = {"tokens": history, "start": 16, "length": 4}
    assert not check(plan_with(**wrong)).errors
    penalized = params(repetition_penalty=1.1)
    assert set(check(plan_with(**wrong, sampling=penalized)).errors) == {BAD}


def test_a_failed_parent_fails_its_children() -> None:
    plan = StepPlan(step_id=1)
    parent, child = make_spec(2, 20), make_spec(3, 20, index=1)
    add_chunk(plan, parent, range(20), [2, 99], length=20, samples=[parent, child])
    assert set(check(plan).errors) == {SequenceId(2), SequenceId(3)}


def test_more_chunks_than_a_step_may_have_fail_the_last() -> None:
    plan = StepPlan(step_id=1)
    for i in range(SPEC.max_chunks + 1):
        add_chunk(plan, make_spec(i + 1, 1), [1], [i], length=1)
    assert set(check(plan).errors) == {SequenceId(SPEC.max_chunks + 1)}


def test_a_pending_input_needs_the_sample_of_the_step_before() -> None:
    pending = {"tokens": list(range(20)), "start": 20, "length": 1}
    assert check(plan_with(**pending)).errors[BAD].code == ErrorCode.INVALID_PLAN
    assert not check(plan_with(**pending), LastSamples(tokens={BAD: 5})).errors
    assert set(check(plan_with(**pending), LastSamples(tokens={GOOD: 5})).errors) == {BAD}


def test_a_pending_input_that_failed_repeats_its_error() -> None:
    pending = {"tokens": list(range(20)), "start": 20, "length": 1}
    last = LastSamples(failed={BAD: ErrorCode.NON_FINITE})
    assert check(plan_with(**pending), last).errors[BAD].code == ErrorCode.NON_FINITE


@pytest.mark.parametrize("pair", [(0, 20), (-1, 3), (20, 3), (3, 3)])
def test_a_wrong_copy_fails_who_holds_its_destination(pair: tuple[int, int]) -> None:
    plan = plan_with()
    plan.copy_sources.extend((0, pair[0]))
    plan.copy_destinations.extend((9, pair[1]))
    checked = check(plan)
    assert checked.copies == [0]
    assert set(checked.errors) == ({BAD} if pair[1] == 3 else set())


BREAKS: list[Callable[[StepPlan], object]] = [
    lambda plan: plan.starts.pop(),
    lambda plan: plan.lengths.append(3),
    lambda plan: plan.token_buffers.pop(),
    lambda plan: plan.table_lengths.pop(),
    lambda plan: plan.sampled.pop(),
    lambda plan: plan.copy_sources.append(1),
    lambda plan: plan.num_samples.extend([-1, 1]),
    lambda plan: plan.token_lengths.__setitem__(0, -4),
    lambda plan: plan.table_lengths.__setitem__(0, -4),
]


@pytest.mark.parametrize("index", range(len(BREAKS)))
def test_columns_that_do_not_fit_refuse_the_whole_plan(index: int) -> None:
    plan = plan_with()
    BREAKS[index](plan)
    checked = check(plan)
    assert not checked.chunks
    assert set(checked.errors) == {GOOD, BAD}


def _garbage(rng: random.Random) -> StepPlan:
    """Mostly plausible numbers, some absurd ones."""

    def number(high: int) -> int:
        return rng.choice((rng.randrange(high), rng.randrange(high), -1, high, 2**31 - 1, -(2**31)))

    def column(count: int, high: int) -> array[int]:
        return array("i", [number(high) for _ in range(count)])

    count = rng.randrange(5)
    specs = [_garbage_spec(rng, number) for _ in range(count)]
    num_samples = array("i", [rng.randrange(3) for _ in range(count)])
    sampled = [rng.choice(specs) for _ in range(sum(num_samples))] if specs else []
    num_copies = rng.randrange(3)
    return StepPlan(
        step_id=number(9),
        sequences=specs,
        starts=column(count, 40),
        lengths=column(count, 40),
        token_buffers=[column(rng.randrange(60), 320) for _ in specs],
        token_lengths=column(count, 60),
        table_buffers=[column(rng.randrange(5), 96) for _ in specs],
        table_lengths=column(count, 5),
        num_samples=num_samples,
        sampled=sampled,
        copy_sources=column(num_copies, 96),
        copy_destinations=column(num_copies, 96),
    )


def _garbage_spec(rng: random.Random, number: Callable[[int], int]) -> SequenceSpec:
    sampling = SamplingParams(
        temperature=rng.choice((0.0, 1.0, -1.0, float("nan"), 1e300)),
        top_k=number(400),
        top_p=rng.choice((1.0, 0.5, 0.0, float("inf"))),
        repetition_penalty=rng.choice((1.0, 2.0, 0.0)),
        logit_bias=((number(320), rng.choice((1.0, float("nan")))),),
        min_tokens=number(5),
        stop_token_ids=(number(320),),
        num_logprobs=rng.choice((None, 2, number(400))),
        num_prompt_logprobs=rng.choice((None, 1)),
    )
    return make_spec(rng.randrange(4), abs(number(40)), params=sampling)


def test_no_garbage_harms_the_runner(runner: ModelRunner) -> None:
    rng = random.Random(11)
    for _ in range(1500):
        plan = _garbage(rng)
        result = runner.execute(plan)
        assert len(result.tokens) == len(plan.sampled)


def test_what_was_sound_a_plan_ago_says_nothing_of_other_parameters() -> None:
    checker, wrong = PlanChecker(SPEC), params(top_k=-2)
    for sampling in (GREEDY, wrong, wrong, GREEDY, params(top_k=-2), params(top_k=2)):
        errors = checker.check(plan_with(sampling=sampling), LastSamples()).errors
        assert (BAD in errors) == (sampling.top_k < 0)
        assert GOOD not in errors
