from __future__ import annotations

import time
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec import (
    PlanDecoder,
    PlanEncoder,
    decode_result,
    encode_result,
    encode_resync,
)
from common.errors import InvariantError, ResyncError
from common.plan import (
    ErrorCode,
    PromptLogprobs,
    SequenceError,
    SequenceId,
    StepPlan,
    StepResult,
    StepTimings,
    TokenLogprobs,
)
from proto import executor_pb2
from tests.common.histories import History, add_chunk, decode_plan, meaning

INCARNATION, EPOCH = 77, 3
MAX_ROWS = 24


class Link:
    """Encoder and decoder of one stream, with the bytes between."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self.encoder = PlanEncoder(max_rows)
        self.decoder = PlanDecoder(max_rows, incarnation=INCARNATION, epoch=EPOCH)

    def encode(self, plan: StepPlan) -> executor_pb2.StepMessage:
        return self.encoder.encode(plan, incarnation=INCARNATION, epoch=EPOCH)

    def carry(self, plan: StepPlan) -> StepPlan:
        data = self.encode(plan).SerializeToString()
        return self.decoder.decode(executor_pb2.StepMessage.FromString(data))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_steps=st.integers(1, 40))
def test_decode_of_encode_is_the_plan_over_random_histories(seed: int, num_steps: int) -> None:
    history, link = History(seed, max_live=12), Link()
    sent: list[tuple[StepPlan, dict[str, object]]] = []
    live_ids: set[int] = set()
    for _ in range(num_steps):
        history.churn()
        plan = history.plan()
        decoded = link.carry(plan)
        sent.append((decoded, meaning(plan)))
        assert sorted(decoded.released) == sorted(set(plan.released) & live_ids)
        live_ids -= set(plan.released)
        live_ids |= {spec.sequence_id for spec in (*plan.sequences, *plan.sampled)}
        assert link.encoder.num_rows == link.decoder.num_rows == len(live_ids)
    # Plans decoded early still say the same after all later ones were decoded.
    for decoded, expected in sent:
        assert meaning(decoded) == expected


def test_views_of_a_decoded_plan_survive_numpy_views_and_growth() -> None:
    history, link = History(1, max_live=4), Link()
    live = history.add()
    first = link.carry(decode_plan(history, [live]))
    viewed = np.frombuffer(first.token_buffers[0], np.int32)[: first.token_lengths[0]]
    expected = viewed.tolist()
    for _ in range(500):
        link.carry(decode_plan(history, [live]))
    assert viewed.tolist() == expected


def test_planning_on_does_not_change_an_encoded_message() -> None:
    history, link = History(1, max_live=4), Link()
    live = history.add()
    message = link.encode(decode_plan(history, [live]))
    before = message.SerializeToString()
    link.encode(decode_plan(history, [live]))
    assert message.SerializeToString() == before


def test_only_growth_travels() -> None:
    history, link = History(1, max_live=4), Link()
    live = history.add(num_tokens=5000)
    first = link.encode(decode_plan(history, [live]))
    second = link.encode(decode_plan(history, [live]))
    assert len(first.plan.tokens) == 4 * 5001
    assert len(second.plan.tokens) == 4
    assert not second.plan.new_rows


def test_released_row_is_reused_within_the_same_plan() -> None:
    history, link = History(1, max_live=9), Link(max_rows=1)
    first, second = history.add(), history.add()
    link.carry(decode_plan(history, [first]))
    plan = decode_plan(history, [second])
    plan.released = [first.spec.sequence_id]
    assert meaning(link.carry(plan)) == meaning(plan)


def test_readmission_is_a_new_row_with_the_whole_history() -> None:
    history, link = History(1, max_live=9), Link()
    live = history.add()
    link.carry(decode_plan(history, [live]))
    live.blocks = array("i")
    plan = decode_plan(history, [live])
    plan.released = [live.spec.sequence_id]
    decoded = link.carry(plan)
    assert meaning(decoded) == meaning(plan)


def test_absence_from_a_plan_frees_nothing() -> None:
    history, link = History(1, max_live=9), Link()
    first, second = history.add(), history.add()
    link.carry(decode_plan(history, [first, second]))
    link.carry(decode_plan(history, [second]))
    message = link.encode(decode_plan(history, [first]))
    assert not message.plan.new_rows


def test_reset_starts_over_from_message_zero_and_whole_histories() -> None:
    history, link = History(1, max_live=9), Link()
    live = history.add()
    link.carry(decode_plan(history, [live]))
    link.encoder.reset()
    plan = decode_plan(history, [live])
    plan.released = [SequenceId(4711)]  # known to the stream before, not to this one
    message = link.encode(plan)
    assert message.message_number == 0
    assert not message.plan.released
    fresh = PlanDecoder(MAX_ROWS, incarnation=INCARNATION, epoch=EPOCH)
    assert meaning(fresh.decode(message)) == meaning(plan)


def test_encoder_refuses_more_rows_than_the_stream_has() -> None:
    history, link = History(1, max_live=9), Link(max_rows=1)
    with pytest.raises(InvariantError, match="rows"):
        link.encode(decode_plan(history, [history.add(), history.add()]))


def test_encoder_refuses_a_history_that_shrank() -> None:
    history, link = History(1, max_live=9), Link()
    live = history.add()
    link.encode(decode_plan(history, [live]))
    live.tokens = live.tokens[:2]
    with pytest.raises(InvariantError, match="shrank"):
        link.encode(decode_plan(history, [live]))


def spoiled(change: str) -> executor_pb2.StepMessage:
    """The third message of a good stream, spoiled in one way."""
    history, link = History(1, max_live=9), Link()
    batch = [history.add(), history.add()]
    for _ in range(2):
        link.carry(decode_plan(history, batch))
    plan = decode_plan(history, batch)
    add_chunk(plan, history.add(), start=0, length=5, samples=[batch[0].spec])
    message = link.encode(plan)
    body = message.plan
    u32 = np.uint32
    changes = {
        "nothing": lambda: None,
        "gap": lambda: setattr(message, "message_number", 3),
        "repeat": lambda: setattr(message, "message_number", 1),
        "epoch": lambda: setattr(message, "epoch", EPOCH + 1),
        "incarnation": lambda: setattr(message, "incarnation", INCARNATION + 1),
        "step": lambda: setattr(message, "step_id", message.step_id + 1),
        "row beyond": lambda: setattr(body, "rows", u32([0, 1, MAX_ROWS]).tobytes()),
        "row unused": lambda: setattr(body, "rows", u32([0, 1, 9]).tobytes()),
        "row negative": lambda: setattr(body, "rows", u32([0, 1, 2**32 - 1]).tobytes()),
        "row twice": lambda: setattr(body, "rows", u32([0, 1, 1]).tobytes()),
        "rows cut": lambda: setattr(body, "rows", body.rows[:-1]),
        "starts short": lambda: setattr(body, "starts", body.starts[:-4]),
        "lengths long": lambda: setattr(body, "lengths", body.lengths * 2),
        "decodes": lambda: setattr(body, "num_decodes", 4),
        "many decodes": lambda: setattr(body, "num_decodes", 2**32 - 1),
        "samples": lambda: setattr(body, "num_samples", u32([2]).tobytes()),
        "sample row": lambda: setattr(body, "sample_rows", u32([8]).tobytes()),
        "tokens short": lambda: setattr(body, "tokens", body.tokens[:-4]),
        "growth beyond": lambda: setattr(body, "token_growth_chunks", u32([3]).tobytes()),
        "growth unpaired": lambda: setattr(body, "token_growth_chunks", b""),
        "blocks long": lambda: setattr(body, "blocks", body.blocks + b"\0\0\0\0"),
        "release unused": lambda: setattr(body, "released", u32([9]).tobytes()),
        "release twice": lambda: setattr(body, "released", u32([0, 0]).tobytes()),
        "new row in use": lambda: setattr(body.new_rows[0], "row", 0),
        "new row beyond": lambda: setattr(body.new_rows[0], "row", MAX_ROWS),
        "sequence twice": lambda: setattr(body.new_rows[0], "sequence_id", 1),
        "copies": lambda: setattr(body, "copy_sources", b"\0\0\0\0"),
        "no body": lambda: message.ClearField("plan"),
    }
    changes[change]()
    return message


SPOILS = [
    "gap",
    "repeat",
    "epoch",
    "incarnation",
    "step",
    "row beyond",
    "row unused",
    "row negative",
    "row twice",
    "rows cut",
    "starts short",
    "lengths long",
    "decodes",
    "many decodes",
    "samples",
    "sample row",
    "tokens short",
    "growth beyond",
    "growth unpaired",
    "blocks long",
    "release unused",
    "release twice",
    "new row in use",
    "new row beyond",
    "sequence twice",
    "copies",
    "no body",
]


def decoder_after_two() -> PlanDecoder:
    history, link = History(1, max_live=9), Link()
    batch = [history.add(), history.add()]
    for _ in range(2):
        link.carry(decode_plan(history, batch))
    return link.decoder


@pytest.mark.parametrize("change", SPOILS)
def test_what_does_not_fit_the_stream_is_a_resync(change: str) -> None:
    with pytest.raises(ResyncError):
        decoder_after_two().decode(spoiled(change))


def test_the_same_message_unspoiled_is_decoded() -> None:
    assert decoder_after_two().decode(spoiled("nothing")).num_chunks == 3


def test_masks_and_skips_take_part_in_the_numbering() -> None:
    history, link = History(1, max_live=9), Link()
    live = history.add()
    link.carry(decode_plan(history, [live]))
    mask = link.encoder.encode_mask(
        1, live.spec.sequence_id, b"\x01", incarnation=INCARNATION, epoch=EPOCH
    )
    skip = link.encoder.encode_skip(1, live.spec.sequence_id, incarnation=INCARNATION, epoch=EPOCH)
    assert [mask.message_number, skip.message_number] == [1, 2]
    link.decoder.check(mask)
    link.decoder.check(skip)
    link.carry(decode_plan(history, [live]))


def steady_decode(num_sequences: int) -> tuple[Link, History, list[StepPlan]]:
    history, link = History(1, max_live=num_sequences), Link(max_rows=2 * num_sequences)
    batch = [history.add(num_tokens=100 + i) for i in range(num_sequences)]
    link.carry(decode_plan(history, batch))
    return link, history, [decode_plan(history, batch) for _ in range(16)]


def test_256_sequence_decode_step_is_about_3_kib() -> None:
    link, _, plans = steady_decode(256)
    sizes = [link.encode(plan).ByteSize() for plan in plans]
    # 12 bytes a sequence for row, start and token; in one step of 16 a sequence takes a block.
    assert sum(sizes) / len(sizes) < 3.5 * 1024
    assert min(sizes) >= 3 * 1024


def test_encoding_256_decodes_takes_well_under_a_millisecond() -> None:
    best = float("inf")
    for _ in range(5):
        link, _, plans = steady_decode(256)
        for plan in plans:
            begin = time.perf_counter()
            link.encode(plan).SerializeToString()
            best = min(best, time.perf_counter() - begin)
    # About 100 us on a quiet core; the bound is for a crowded one.
    assert best < 400e-6


def full_result() -> StepResult:
    return StepResult(
        step_id=9,
        tokens=array("i", [5, 0, 49_151]),
        errors=(
            SequenceError(
                sequence_id=SequenceId(2), code=ErrorCode.NON_FINITE, message="NaN in the logits"
            ),
        ),
        logprobs=[
            TokenLogprobs(1, (5, 5, 6), (-0.5, -0.5, -2.0)),
            None,
            TokenLogprobs(7, (9,), (-8.0,)),
        ],
        prompt_logprobs=(
            PromptLogprobs(
                sequence_id=SequenceId(3),
                first_position=1,
                positions=(
                    TokenLogprobs(2, (4, 1), (-1.5, -0.25)),
                    TokenLogprobs(1, (8, 8), (-0.75, -0.75)),
                ),
            ),
        ),
        timings=StepTimings(
            queue_ns=1, prepare_ns=2, forward_ns=3, sample_ns=4, mask_wait_ns=5, gap_ns=6
        ),
        plan_was_ready=True,
    )


@pytest.mark.parametrize(
    "result",
    [
        full_result(),
        StepResult(step_id=1, tokens=array("i")),
        StepResult(step_id=2**40, tokens=array("i", [1]), logprobs=[None]),
    ],
)
def test_results_survive_the_wire(result: StepResult) -> None:
    data = encode_result(result, incarnation=INCARNATION, epoch=EPOCH).SerializeToString()
    message = executor_pb2.StepResult.FromString(data)
    assert (message.incarnation, message.epoch) == (INCARNATION, EPOCH)
    assert decode_result(message) == result


def test_resync_reply_is_raised_with_its_reason() -> None:
    message = encode_resync("message 4 came where 3 was due", incarnation=1, epoch=2)
    with pytest.raises(ResyncError, match="message 4"):
        decode_result(message)


@pytest.mark.parametrize(
    "column",
    ["tokens", "logprob_counts", "logprob_token_ids", "logprobs", "logprob_ranks"],
)
def test_result_with_a_cut_column_is_a_resync(column: str) -> None:
    message = encode_result(full_result(), incarnation=1, epoch=1)
    setattr(message, column, getattr(message, column)[:-4])
    with pytest.raises(ResyncError):
        decode_result(message)


def test_error_code_of_a_newer_executor_reads_as_internal() -> None:
    message = executor_pb2.StepResult()
    message.errors.add(sequence_id=1, code=executor_pb2.ErrorCode.ValueType(99))
    assert decode_result(message).errors[0].code is ErrorCode.INTERNAL
