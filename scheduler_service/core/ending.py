"""How a sequence gives up its place: preempted, or ended. The only place where either happens."""

from __future__ import annotations

from scheduler_service.core.events import SequenceFinished, SequencePreempted
from scheduler_service.core.request import FinishReason
from scheduler_service.core.sequence import Sequence, SequenceStatus
from scheduler_service.core.state import SchedulerState


def _give_up_kv(state: SchedulerState, sequence: Sequence) -> None:
    _fence_forks(state, sequence)
    state.prefixes.forget(sequence)
    state.tails.leave(sequence)
    state.kv.release(sequence, last_ended_step=state.last_ended_step)
    del state.running[sequence.sequence_id]


def _fence_forks(state: SchedulerState, sequence: Sequence) -> None:
    """Choices of one request may name blocks that the tree will get when the step that forked them
    is confirmed. One that is gone by then holds no node above them, so the others must hold theirs
    at least until the steps that name its blocks have ended."""
    for other in state.requests[sequence.key.request_id].values():
        if other.last_step_id < sequence.last_step_id:
            other.last_step_id = sequence.last_step_id


def preempt(state: SchedulerState, sequence: Sequence) -> None:
    """Back to the queue; its confirmed full blocks stay in the tree. It still accepts the results
    of steps in flight, and is not admitted again before they have come."""
    state.events.preempted.append(
        SequencePreempted(sequence.sequence_id, sequence.key, sequence.num_computed_tokens)
    )
    state.tallies.num_preemptions += 1
    park(state, sequence)


def park(state: SchedulerState, sequence: Sequence) -> None:
    """Running -> waiting."""
    _give_up_kv(state, sequence)
    sequence.move_to(SequenceStatus.WAITING)
    state.released.append(sequence.sequence_id)
    state.waiting.add(sequence)


def end(
    state: SchedulerState,
    sequence: Sequence,
    reason: FinishReason,
    *,
    stop_token_id: int | None = None,
    message: str = "",
) -> None:
    """Ends it for good, with the tokens it has; what is in flight for it will be dropped.

    Choices that were never forked off end with it.
    """
    for choice in range(sequence.spec.index, sequence.spec.index + 1 + sequence.forks_left):
        state.events.finished.append(
            SequenceFinished(
                sequence.sequence_id,
                sequence.key._replace(choice=choice),
                reason,
                sequence.num_output_tokens,
                stop_token_id,
                message,
            )
        )
    forget(state, sequence)


def forget(state: SchedulerState, sequence: Sequence) -> None:
    """Takes it out of every list without telling anyone."""
    if sequence.status is SequenceStatus.RUNNING:
        _give_up_kv(state, sequence)
    else:
        state.waiting.remove(sequence)
    sequence.move_to(SequenceStatus.FINISHED)
    state.released.append(sequence.sequence_id)
    del state.sequences[sequence.sequence_id]
    choices = state.requests[sequence.key.request_id]
    del choices[sequence.key.choice]
    if not choices:
        del state.requests[sequence.key.request_id]
