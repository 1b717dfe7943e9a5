from __future__ import annotations

from array import array
from itertools import product

import pytest

from scheduler_service.core.events import SequenceKey
from scheduler_service.core.sequence import Sequence, SequenceStatus
from tests.support.builders import make_request
from tests.support.plans import make_spec

W, R, F = SequenceStatus.WAITING, SequenceStatus.RUNNING, SequenceStatus.FINISHED
ALLOWED = {(W, R), (R, F), (R, W), (W, F)}


def make_sequence(num_prompt_tokens: int = 4, max_len: int = 10) -> Sequence:
    prompt = list(range(num_prompt_tokens))
    return Sequence(
        spec=make_spec(1, num_prompt_tokens),
        request=make_request("r", prompt),
        key=SequenceKey("r", 0),
        arrival=0,
        tokens=array("i", prompt),
        max_len=max_len,
        end_token_ids=frozenset(),
    )


@pytest.mark.parametrize(("old", "new"), list(product(SequenceStatus, repeat=2)))
def test_only_the_transitions_of_the_table_are_possible(
    old: SequenceStatus, new: SequenceStatus
) -> None:
    sequence = make_sequence()
    sequence.status = old
    if (old, new) in ALLOWED:
        sequence.move_to(new)
        assert sequence.status is new
    else:
        with pytest.raises(AssertionError, match="->"):
            sequence.move_to(new)


def test_a_prompt_is_planned_in_any_chunks_and_then_one_token_at_a_time() -> None:
    sequence = make_sequence(num_prompt_tokens=4)
    assert sequence.num_tokens_to_plan == 4
    sequence.num_planned_tokens = 3
    assert sequence.num_tokens_to_plan == 1
    sequence.num_planned_tokens, sequence.num_pending = 4, 1
    assert sequence.num_tokens_to_plan == 1


def test_nothing_is_planned_past_the_end_by_length() -> None:
    sequence = make_sequence(num_prompt_tokens=4, max_len=6)
    sequence.num_planned_tokens, sequence.num_pending = 5, 2
    assert sequence.planned_len == 6
    assert sequence.num_tokens_to_plan == 0


def test_giving_up_kv_begins_another_life_and_keeps_the_tokens() -> None:
    sequence = make_sequence()
    sequence.num_computed_tokens = sequence.num_planned_tokens = 4
    sequence.give_up_kv()
    assert (len(sequence.table), sequence.num_computed_tokens, sequence.life) == (0, 0, 1)
    assert (len(sequence), sequence.num_tokens_to_plan) == (4, 4)
