"""Requests in: refused when they can never run here, else turned into sequences."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Collection

from common.plan import SequenceSpec
from scheduler_service.core.ending import end
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.request import FinishReason, PriorOutput, RefusedError, Request
from scheduler_service.core.sequence import Sequence
from scheduler_service.core.state import SchedulerState


class QueueFullError(RefusedError):
    """There is no room in the queue now; later there may be."""


def take_in(state: SchedulerState, request: Request, outputs: Collection[PriorOutput]) -> None:
    """Queues the request: one sequence that will fork, or one per prior output, which resumes.

    RefusedError, and nothing changed, if it can never run here or the queue is full. Requests that
    resume are not counted against the queue: they were accepted before.
    """
    _check(state, request, outputs)
    arrival = state.next_arrival
    state.next_arrival += 1
    if outputs:
        sequences = [_sequence(state, request, arrival, prior) for prior in outputs]
    else:
        sequences = [_sequence(state, request, arrival, PriorOutput(index=0))]
        sequences[0].forks_left = request.n - 1
    for sequence in sequences:
        state.enter(sequence)
        state.waiting.add(sequence)
        if sequence.num_output_tokens and sequence.tokens[-1] in sequence.end_token_ids:
            end(state, sequence, FinishReason.STOP)
        elif len(sequence) >= sequence.max_len:
            end(state, sequence, FinishReason.LENGTH)


def _check(state: SchedulerState, request: Request, outputs: Collection[PriorOutput]) -> None:
    limits, num_prompt = state.limits, len(request.prompt_token_ids)
    if num_prompt == 0:
        raise RefusedError("the prompt has no tokens", field="prompt")
    longest = limits.max_sequence_len
    if num_prompt + 1 > longest:
        raise RefusedError(
            f"the prompt has {num_prompt} tokens; with one output the limit is {longest}",
            field="prompt",
        )
    if request.max_tokens is not None and num_prompt + request.max_tokens > longest:
        raise RefusedError(
            f"{num_prompt} prompt tokens and max_tokens {request.max_tokens} exceed the limit of"
            f" {longest}; max_tokens can be at most {longest - num_prompt}",
            field="max_tokens",
        )
    if not 1 <= request.n <= limits.max_num_seqs:
        raise RefusedError(f"n must be 1 to {limits.max_num_seqs}, not {request.n}", field="n")
    live = state.requests.get(request.request_id, {})
    if any(prior.index in live for prior in outputs) or (live and not outputs):
        raise RefusedError(f"request {request.request_id} is live already", field="request_id")
    if not outputs and len(state.waiting) >= limits.max_num_waiting:
        raise QueueFullError(f"{len(state.waiting)} sequences are waiting already", field="")


def _sequence(
    state: SchedulerState, request: Request, arrival: int, prior: PriorOutput
) -> Sequence:
    num_prompt = len(request.prompt_token_ids)
    max_len = state.limits.max_sequence_len
    if request.max_tokens is not None:
        max_len = num_prompt + request.max_tokens
    tokens = array(request.prompt_token_ids.typecode, request.prompt_token_ids)
    tokens.extend(prior.token_ids)
    return Sequence(
        spec=SequenceSpec(
            sequence_id=state.new_sequence_id(),
            index=prior.index,
            num_prompt_tokens=num_prompt,
            params=request.params,
        ),
        request=request,
        key=SequenceKey(request.request_id, prior.index),
        arrival=arrival,
        tokens=tokens,
        max_len=max_len,
        end_token_ids=request.eos_token_ids | request.stop_token_ids,
    )
