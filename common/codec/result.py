"""Step results as messages. Nothing is remembered between two of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from common.codec.columns import unpack, unpack_f32
from common.errors import ResyncError
from common.plan import (
    ErrorCode,
    PromptLogprobs,
    SequenceError,
    SequenceId,
    StepResult,
    StepTimings,
    TokenLogprobs,
)
from proto import executor_pb2

_TIMINGS = ("queue_ns", "prepare_ns", "forward_ns", "sample_ns", "mask_wait_ns", "gap_ns")


def encode_result(result: StepResult, *, incarnation: int, epoch: int) -> executor_pb2.StepResult:
    message = executor_pb2.StepResult(
        incarnation=incarnation,
        epoch=epoch,
        step_id=result.step_id,
        tokens=result.tokens.tobytes(),
        plan_was_ready=result.plan_was_ready,
    )
    for name in _TIMINGS:
        setattr(message.timings, name, getattr(result.timings, name))
    for error in result.errors:
        message.errors.add(
            sequence_id=error.sequence_id,
            code=executor_pb2.ErrorCode.ValueType(error.code.value),
            message=error.message,
        )
    if result.logprobs is not None:
        entries = [entry for entry in result.logprobs if entry is not None]
        message.logprob_counts = _u32(
            len(entry.token_ids) if entry else 0 for entry in result.logprobs
        )
        message.logprob_token_ids, message.logprobs, message.logprob_ranks = _pack(entries)
    for prompt in result.prompt_logprobs:
        token_ids, logprobs, ranks = _pack(prompt.positions)
        message.prompt_logprobs.add(
            sequence_id=prompt.sequence_id,
            first_position=prompt.first_position,
            counts=_u32(len(entry.token_ids) for entry in prompt.positions),
            token_ids=token_ids,
            logprobs=logprobs,
            ranks=ranks,
        )
    return message


def encode_resync(reason: str, *, incarnation: int, epoch: int) -> executor_pb2.StepResult:
    """The last message of a stream that has gone wrong."""
    return executor_pb2.StepResult(
        incarnation=incarnation, epoch=epoch, resync=executor_pb2.Resync(reason=reason)
    )


def decode_result(message: executor_pb2.StepResult) -> StepResult:
    """ResyncError if the executor asks for a new stream, or if the columns do not fit together."""
    if message.HasField("resync"):
        raise ResyncError(message.resync.reason)
    logprobs: list[TokenLogprobs | None] | None = None
    if message.logprob_counts:
        logprobs = _unpack(
            message.logprob_counts,
            message.logprob_token_ids,
            message.logprobs,
            message.logprob_ranks,
        )
        if len(logprobs) * 4 != len(message.tokens):
            raise ResyncError("logprob_counts does not fit tokens")
    return StepResult(
        step_id=message.step_id,
        tokens=unpack(message.tokens, "tokens"),
        errors=tuple(map(_read_error, message.errors)),
        logprobs=logprobs,
        prompt_logprobs=tuple(map(_read_prompt, message.prompt_logprobs)),
        timings=StepTimings(**{name: getattr(message.timings, name) for name in _TIMINGS}),
        plan_was_ready=message.plan_was_ready,
    )


def _read_error(message: executor_pb2.SequenceError) -> SequenceError:
    known = message.code in ErrorCode._value2member_map_
    return SequenceError(
        sequence_id=SequenceId(message.sequence_id),
        code=ErrorCode(message.code) if known else ErrorCode.INTERNAL,
        message=message.message,
    )


def _read_prompt(message: executor_pb2.PromptLogprobs) -> PromptLogprobs:
    entries = _unpack(message.counts, message.token_ids, message.logprobs, message.ranks)
    if None in entries:
        raise ResyncError("a prompt position has no logprobs")
    return PromptLogprobs(
        sequence_id=SequenceId(message.sequence_id),
        first_position=message.first_position,
        positions=tuple(entry for entry in entries if entry is not None),
    )


def _u32(values: Iterable[int]) -> bytes:
    return np.fromiter(values, "<u4").tobytes()


def _pack(entries: Iterable[TokenLogprobs]) -> tuple[bytes, bytes, bytes]:
    """Flat token ids, flat logprobs, ranks."""
    entries = list(entries)
    token_ids = _u32(token for entry in entries for token in entry.token_ids)
    logprobs = np.fromiter((value for entry in entries for value in entry.logprobs), "<f4")
    return token_ids, logprobs.tobytes(), _u32(entry.rank for entry in entries)


def _unpack(
    counts_data: bytes, ids_data: bytes, logprobs_data: bytes, ranks_data: bytes
) -> list[TokenLogprobs | None]:
    """One entry per count; None where the count is 0, which has no rank either."""
    counts = unpack(counts_data, "logprob counts").tolist()
    token_ids = unpack(ids_data, "logprob token ids").tolist()
    logprobs = unpack_f32(logprobs_data, "logprobs")
    ranks = iter(unpack(ranks_data, "logprob ranks").tolist())
    if not len(token_ids) == len(logprobs) == sum(counts) or len(ranks_data) // 4 != sum(
        map(bool, counts)
    ):
        raise ResyncError("logprob columns differ in length")
    entries: list[TokenLogprobs | None] = []
    first = 0
    for count in counts:
        last = first + count
        entries.append(
            TokenLogprobs(next(ranks), tuple(token_ids[first:last]), tuple(logprobs[first:last]))
            if count
            else None
        )
        first = last
    return entries
