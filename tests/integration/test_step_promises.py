"""What must hold from one step to the next, on the core and codec with an executor that checks.

Where the tests over processes can only wait, these count steps.
"""

from __future__ import annotations

from array import array

import pytest

from common.plan import TOKEN_TYPECODE, SamplingParams
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.request import FinishReason, Request
from tests.support.in_process_engine import Arrival, InProcessEngine
from tests.support.shadow_executor import ShadowExecutor

_BLOCK_SIZE = 16
_VOCAB = 1000


def _limits(
    *, depth: int, max_num_seqs: int = 8, max_num_batched_tokens: int = 64
) -> SchedulerLimits:
    return SchedulerLimits(
        block_size=_BLOCK_SIZE,
        num_blocks=600,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=8192,
        depth=depth,
        vocab_size=_VOCAB,
    )


def _engine(limits: SchedulerLimits) -> tuple[InProcessEngine, ShadowExecutor]:
    executor = ShadowExecutor(limits.num_blocks, _BLOCK_SIZE, _VOCAB)
    return InProcessEngine(limits, executor), executor


def _request(name: str, tokens: list[int], *, max_tokens: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=array(TOKEN_TYPECODE, tokens),
        params=SamplingParams(temperature=0.0),
        max_tokens=max_tokens,
    )


def _own(index: int, count: int) -> list[int]:
    """Tokens that no other index begins with."""
    return [index + 1, *((index * 31 + i * 7) % _VOCAB for i in range(count - 1))]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_hundred_requests_hold_and_compute_their_shared_prompt_once(depth: int) -> None:
    shared = [i * 13 % _VOCAB for i in range(2048)]
    limits = _limits(max_num_seqs=128, max_num_batched_tokens=512, depth=depth)
    engine, executor = _engine(limits)
    for i in range(100):
        engine.add(_request(f"r{i}", [*shared, *_own(i, 12)], max_tokens=6))
    most = 0  # blocks at a time; without sharing it would be 100 times 130
    while engine.scheduler.has_work:
        engine.turn()
        most = max(most, engine.scheduler.counters.num_referenced_blocks)
    own_tokens, own_blocks = 12 + 6 - 1, 2  # positions 2048 to 2064
    assert executor.num_computed_tokens == 2048 + 100 * own_tokens
    assert engine.scheduler.counters.num_computed_tokens == executor.num_computed_tokens
    assert 2048 // _BLOCK_SIZE + 50 * own_blocks <= most <= 2048 // _BLOCK_SIZE + 100 * own_blocks
    cached = sorted(choice.num_cached_tokens for choice in engine.choices.values())
    assert cached == [0, *[2048] * 99]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("turns", [1, 3, 12])
def test_an_aborted_request_gives_its_blocks_back_within_two_steps(depth: int, turns: int) -> None:
    """In the middle of its prompt as well as of its answer."""
    engine, _ = _engine(_limits(depth=depth))
    engine.add(_request("stays", _own(0, 40), max_tokens=60))
    for _ in range(8):
        engine.turn()
    engine.add(_request("leaves", _own(1, 300), max_tokens=60))
    for _ in range(turns):
        engine.turn()
    own_blocks = engine.scheduler.counters.num_referenced_blocks
    assert engine.scheduler.abort("leaves")
    for _ in range(2):
        engine.turn()
    left = engine.scheduler.counters.num_referenced_blocks
    stays = 40 + len(engine.choices[SequenceKey("stays", 0)].token_ids) + depth
    assert left <= -(-stays // _BLOCK_SIZE) < own_blocks
    leaver = engine.choices[SequenceKey("leaves", 0)]
    assert leaver.finished is not None
    assert leaver.finished.reason is FinishReason.ABORT
    engine.run([])
    assert len(engine.choices[SequenceKey("stays", 0)].token_ids) == 60


@pytest.mark.parametrize("depth", [1, 2])
def test_every_slot_is_taken_within_two_steps_of_the_last_prompt(depth: int) -> None:
    engine, _ = _engine(_limits(max_num_seqs=4, depth=depth))
    for i in range(4):
        engine.add(_request(f"r{i}", _own(i, 150), max_tokens=200))
    steps_to_read_prompts = -(-4 * 150 // 61)  # up to 3 decodes share the budget of 64
    for _ in range(steps_to_read_prompts + 2):
        engine.turn()
    assert engine.scheduler.counters.num_running == 4
    assert all(choice.finished is None for choice in engine.choices.values())
    before = {key: len(choice.token_ids) for key, choice in engine.choices.items()}
    engine.turn()
    after = {key: len(choice.token_ids) for key, choice in engine.choices.items()}
    assert after == {key: count + 1 for key, count in before.items()}
    assert len(after) == 4


def test_run_ahead_plans_a_step_before_the_result_of_the_one_before() -> None:
    """At depth 2 there are two steps in flight in steady decode; at depth 1 there never are."""
    for depth in (1, 2):
        engine, _ = _engine(_limits(depth=depth))
        engine.run([Arrival(0, _request("r", _own(0, 20), max_tokens=50))])
        assert engine.most_in_flight == depth
