"""How n choices of one request come from one computed prompt."""

from __future__ import annotations

from array import array
from dataclasses import replace

from scheduler_service.core.events import SequenceKey
from scheduler_service.core.sequence import Sequence, SequenceStatus
from scheduler_service.core.state import SchedulerState


def fork(state: SchedulerState, parent: Sequence) -> list[Sequence]:
    """Makes the other choices of the parent's request; its last prompt chunk is in the plan.

    They share the parent's blocks. One for which there is no place waits, and will come back with
    the prompt and its first token.
    """
    children = [_child(state, parent, index) for index in range(1, 1 + parent.forks_left)]
    parent.forks_left = 0
    owners = [parent]
    for child in children:
        state.enter(child)
        if len(state.running) < state.limits.max_num_running:
            _run(state, parent, child)
            owners.append(child)
        else:
            state.waiting.add(child)
            state.released.append(child.sequence_id)
    if len(owners) > 1 and parent.num_planned_tokens % state.limits.block_size:
        state.tails.add(owners)
    return children


def unfork(parent: Sequence, children: list[Sequence]) -> None:
    """The plan of the fork is void and its children are gone: the parent forks again."""
    parent.forks_left = len(children)


def _child(state: SchedulerState, parent: Sequence, index: int) -> Sequence:
    return Sequence(
        spec=replace(parent.spec, sequence_id=state.new_sequence_id(), index=index),
        request=parent.request,
        key=SequenceKey(parent.key.request_id, index),
        arrival=parent.arrival,
        tokens=array(parent.tokens.typecode, parent.tokens),
        max_len=parent.max_len,
        end_token_ids=parent.end_token_ids,
        was_admitted=True,
        max_computed_len=len(parent.tokens),
    )


def _run(state: SchedulerState, parent: Sequence, child: Sequence) -> None:
    state.kv.share(parent, child)
    child.num_computed_tokens = parent.num_computed_tokens
    child.num_planned_tokens = parent.num_planned_tokens
    child.move_to(SequenceStatus.RUNNING)
    state.running[child.sequence_id] = child
