"""The judge judged: the shadow executor accepts what is right and refuses each kind of wrong."""

from __future__ import annotations

from array import array

import pytest

from common.plan import SamplingParams, SequenceId, StepPlan
from tests.support.plans import GREEDY, add_chunk, make_spec
from tests.support.shadow_executor import DeviceDiedError, ShadowError, ShadowExecutor
from tests.support.shadow_model import ShadowModel, expected_output

PROMPT = [5, 6, 7, 8, 9, 10]


def _executor() -> ShadowExecutor:
    return ShadowExecutor(num_blocks=8, block_size=4, vocab_size=100)


def test_chunked_prompt_and_decodes_give_the_expected_output() -> None:
    executor, spec = _executor(), make_spec(1, 6)
    first = add_chunk(StepPlan(step_id=1), spec, PROMPT, [3], length=4)
    assert executor.execute(first).tokens == array("i")
    second = add_chunk(StepPlan(step_id=2), spec, PROMPT, [3, 0], start=4, length=2, samples=[spec])
    outputs = list(executor.execute(second).tokens)
    # The third step takes its input from the second step's sample.
    third = add_chunk(
        StepPlan(step_id=3, num_decodes=1), spec, PROMPT, [3, 0], start=6, length=1, samples=[spec]
    )
    outputs += executor.execute(third).tokens
    assert outputs == expected_output(executor.model, PROMPT, 2, GREEDY)


def test_a_block_of_another_prefix_is_a_wrong_read() -> None:
    executor = _executor()
    executor.execute(add_chunk(StepPlan(step_id=1), make_spec(1, 6), PROMPT, [0], length=4))
    other = add_chunk(
        StepPlan(step_id=2), make_spec(2, 6), [4, *PROMPT[1:]], [0, 1], start=4, length=2
    )
    with pytest.raises(ShadowError, match="reads block 0"):
        executor.execute(other)


def test_overwriting_a_live_block_shows_at_the_next_read() -> None:
    executor, spec = _executor(), make_spec(1, 8)
    prompt = [*PROMPT, 11, 12]
    executor.execute(add_chunk(StepPlan(step_id=1), spec, prompt, [0], length=4))
    executor.execute(add_chunk(StepPlan(step_id=2), make_spec(2, 2), [1, 2], [0], length=2))
    with pytest.raises(ShadowError, match="reads block 0"):
        executor.execute(add_chunk(StepPlan(step_id=3), spec, prompt, [0, 1], start=4, length=2))


def test_two_writers_of_one_block_are_refused() -> None:
    plan = add_chunk(StepPlan(step_id=1), make_spec(1, 4), PROMPT[:4], [0], length=4)
    add_chunk(plan, make_spec(2, 4), [1, 2, 3, 4], [0], length=4)
    with pytest.raises(ShadowError, match="both write block 0"):
        _executor().execute(plan)


def test_reading_what_the_same_step_writes_is_refused() -> None:
    plan = add_chunk(StepPlan(step_id=1), make_spec(1, 4), PROMPT[:4], [0], length=4)
    add_chunk(plan, make_spec(2, 6), PROMPT, [0, 1], start=4, length=2)
    with pytest.raises(ShadowError, match="writes block 0 that chunk 1 reads"):
        _executor().execute(plan)


def test_copies_run_before_the_forward() -> None:
    executor, parent, child = _executor(), make_spec(1, 6), make_spec(2, 6, index=1)
    plan = add_chunk(StepPlan(step_id=1), parent, PROMPT, [0, 1], length=6, samples=[parent, child])
    token = executor.execute(plan).tokens[1]
    fork = add_chunk(
        StepPlan(step_id=2, num_decodes=1, copy_sources=array("i", [1])),
        child,
        [*PROMPT, token],
        [0, 2],
        start=6,
        length=1,
        samples=[child],
    )
    fork.copy_destinations.append(2)
    output = executor.execute(fork).tokens[0]
    assert [token, output] == expected_output(executor.model, PROMPT, 2, GREEDY, index=1)


def test_a_sample_of_an_older_step_or_stream_cannot_be_taken() -> None:
    executor, spec = _executor(), make_spec(1, 4)
    executor.execute(
        add_chunk(StepPlan(step_id=1), spec, PROMPT[:4], [0], length=4, samples=[spec])
    )
    executor.forget_samples()
    late = add_chunk(
        StepPlan(step_id=2, num_decodes=1),
        spec,
        PROMPT[:4],
        [0, 1],
        start=4,
        length=1,
        samples=[spec],
    )
    with pytest.raises(ShadowError, match="takes a sample that does not exist"):
        executor.execute(late)


def test_a_table_or_history_that_changed_is_refused() -> None:
    executor, spec = _executor(), make_spec(1, 6)
    executor.execute(add_chunk(StepPlan(step_id=1), spec, PROMPT, [0], length=4))
    with pytest.raises(ShadowError, match="table that did not only grow"):
        executor.execute(add_chunk(StepPlan(step_id=2), spec, PROMPT, [2, 1], start=4, length=1))
    with pytest.raises(ShadowError, match="history that did not only grow"):
        executor.execute(
            add_chunk(StepPlan(step_id=3), spec, [1, *PROMPT[1:]], [0, 1], start=4, length=1)
        )


def test_a_scripted_failure_is_that_sequence_alone_and_outlives_run_ahead() -> None:
    executor, good, bad = _executor(), make_spec(1, 3), make_spec(2, 3)
    executor.fail(SequenceId(2))
    plan = add_chunk(StepPlan(step_id=1), good, [1, 2, 3], [0], length=3, samples=[good])
    add_chunk(plan, bad, [1, 2, 3], [1], length=3, samples=[bad])
    result = executor.execute(plan)
    assert [error.sequence_id for error in result.errors] == [2]
    assert result.tokens[0] == expected_output(executor.model, [1, 2, 3], 1, GREEDY)[0]
    late = add_chunk(
        StepPlan(step_id=2, num_decodes=1), bad, [1, 2, 3], [1], start=3, length=1, samples=[bad]
    )
    assert [error.sequence_id for error in executor.execute(late).errors] == [2]


def test_death_writes_nothing() -> None:
    executor, spec = _executor(), make_spec(1, 6)
    executor.die_at(1)
    with pytest.raises(DeviceDiedError):
        executor.execute(add_chunk(StepPlan(step_id=1), spec, PROMPT, [0], length=4))
    with pytest.raises(ShadowError, match="reads block 0"):
        executor.execute(add_chunk(StepPlan(step_id=2), spec, PROMPT, [0, 1], start=4, length=1))


def test_greedy_ignores_seed_and_choice_and_sampling_heeds_both() -> None:
    model = ShadowModel(vocab_size=1000)
    greedy = {
        tuple(expected_output(model, PROMPT, 8, SamplingParams(temperature=0, seed=s), index=i))
        for s in range(3)
        for i in range(3)
    }
    sampled = {
        tuple(expected_output(model, PROMPT, 8, SamplingParams(seed=s), index=i))
        for s in range(3)
        for i in range(3)
    }
    assert (len(greedy), len(sampled)) == (1, 9)


def test_eos_comes_at_its_place_and_min_tokens_masks_it() -> None:
    model = ShadowModel(vocab_size=1000, eos_token_id=2, eos_period=4)
    stop = SamplingParams(temperature=0, stop_token_ids=(2,))
    masked = SamplingParams(temperature=0, stop_token_ids=(2,), min_tokens=30)
    ended = expected_output(model, PROMPT, 100, stop)
    assert ended[-1] == 2
    assert 2 not in ended[:-1]
    assert len(ended) < 30 <= len(expected_output(model, PROMPT, 100, masked))
