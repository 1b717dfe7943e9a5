"""What waits for one worker."""

from __future__ import annotations

from array import array

from common.plan import PromptLogprobs, SequenceId, TokenLogprobs
from scheduler_service.engine.messages import (
    Finished,
    ModelReady,
    Readiness,
    Reply,
    StepOutputs,
)
from scheduler_service.engine.outbox import Outbox

MODEL = ModelReady("m", "f", {}, 100, 10, 16, 8, "float32", "float32")


def test_steps_that_were_not_taken_are_merged_in_order() -> None:
    outbox = Outbox()
    for step in range(3):
        outbox.put_token(1, 0, 10 + step)
        outbox.put_token(2, 1, 20 + step)
    outbox.put_finished(Finished(1, 0, "length", 3))
    (outputs,) = outbox.take()
    assert isinstance(outputs, StepOutputs)
    assert outputs.handles == [1, 2] * 3
    assert outputs.indexes == [0, 1] * 3
    assert list(array("i", outputs.tokens)) == [10, 20, 11, 21, 12, 22]
    assert [finished.handle for finished in outputs.finished] == [1]


def test_taking_empties_it() -> None:
    outbox = Outbox()
    outbox.put_token(1, 0, 5)
    assert outbox.num_entries == 1
    outbox.take()
    assert outbox.num_entries == 0
    assert outbox.take() == []


def test_logprobs_belong_to_the_token_put_before_them() -> None:
    outbox = Outbox()
    entry = TokenLogprobs(1, (7,), (-0.5,))
    outbox.put_token(1, 0, 6)
    outbox.put_token(2, 0, 7)
    outbox.put_logprobs(entry)
    (outputs,) = outbox.take()
    assert isinstance(outputs, StepOutputs)
    assert outputs.logprobs == {1: entry}


def test_prompt_logprobs_alone_are_sent() -> None:
    outbox = Outbox()
    position = TokenLogprobs(1, (7,), (-0.5,))
    entry = PromptLogprobs(sequence_id=SequenceId(3), first_position=4, positions=(position,))
    outbox.put_prompt_logprobs(1, entry)
    (outputs,) = outbox.take()
    assert isinstance(outputs, StepOutputs)
    assert outputs.prompt_logprobs == [(1, 4, [position])]


def test_a_model_comes_before_readiness_and_only_the_last_readiness_is_told() -> None:
    outbox = Outbox()
    outbox.put_readiness(Readiness(False, "starting"))
    outbox.put_readiness(Readiness(True))
    outbox.put_model(MODEL)
    outbox.put_reply(Reply(1, True))
    assert outbox.take() == [MODEL, Readiness(True), Reply(1, True)]
