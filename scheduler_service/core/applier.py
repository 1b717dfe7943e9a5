"""What a result means: KV is confirmed, tokens are delivered, sequences end."""

from __future__ import annotations

from common.plan import SequenceError, SequenceId, StepResult
from scheduler_service.core.ending import end
from scheduler_service.core.request import FinishReason
from scheduler_service.core.sequence import Sequence, SequenceStatus
from scheduler_service.core.state import SchedulerState, StepInFlight


def apply(state: SchedulerState, result: StepResult) -> None:
    """Takes the result of the oldest step in flight; any other is counted and dropped.

    ValueError if it does not answer that plan's samples: the executor cannot be trusted then.
    """
    if not state.in_flight or state.in_flight[0].step_id != result.step_id:
        state.tallies.num_stale_results += 1
        return
    if len(result.tokens) != len(state.in_flight[0].sampled):
        raise ValueError(
            f"step {result.step_id} sampled {len(state.in_flight[0].sampled)} tokens,"
            f" the result has {len(result.tokens)}"
        )
    step = state.in_flight.popleft()
    state.last_ended_step = step.step_id
    failed = {error.sequence_id: error for error in result.errors}
    if failed:
        _include_forks(step, failed)
    _confirm(state, step, failed)
    _advance_forks(state)
    if failed:
        _fail(state, failed)
    _deliver(state, step, result)
    state.kv.end_step(step.step_id)


def _confirm(
    state: SchedulerState, step: StepInFlight, failed: dict[SequenceId, SequenceError]
) -> None:
    block_size, tallies = state.limits.block_size, state.tallies
    num_computed = 0
    for sequence, life, start, end_position in step.computed:
        sequence.num_in_flight -= 1
        num_computed += end_position - start
        if start < sequence.max_computed_len:
            again = min(end_position, sequence.max_computed_len) - start
            tallies.num_recomputed_tokens += again
        if sequence.life != life or (failed and sequence.sequence_id in failed):
            continue
        sequence.num_computed_tokens = end_position
        if end_position > sequence.max_computed_len:
            sequence.max_computed_len = end_position
        if end_position // block_size > sequence.num_committed_blocks:
            state.kv.commit(sequence)
            state.prefixes.update(sequence)
    tallies.num_computed_tokens += num_computed


def _advance_forks(state: SchedulerState) -> None:
    """Forks planned while their parent's chunk was in flight take part in what it confirmed, so
    that each holds the tree's nodes above all cached blocks it names."""
    for step in state.in_flight:
        for parent, children in step.forked:
            for child in children:
                is_running = child.status is SequenceStatus.RUNNING
                if is_running and child.num_computed_tokens < parent.num_computed_tokens:
                    child.num_computed_tokens = parent.num_computed_tokens
                    state.kv.commit(child)


def _include_forks(step: StepInFlight, failed: dict[SequenceId, SequenceError]) -> None:
    """Forks share the blocks of a prompt that failed."""
    for parent, children in step.forked:
        error = failed.get(parent.sequence_id)
        if error is not None:
            for child in children:
                failed.setdefault(child.sequence_id, error)


def _fail(state: SchedulerState, failed: dict[SequenceId, SequenceError]) -> None:
    """Ends the sequences that failed; their mates go on."""
    for sequence_id, error in failed.items():
        sequence = state.sequences.get(sequence_id)
        if sequence is not None:
            end(state, sequence, FinishReason.ERROR, message=error.message)


def _deliver(state: SchedulerState, step: StepInFlight, result: StepResult) -> None:
    keys, tokens, logprobs = state.events.keys, state.events.tokens, result.logprobs
    # First: a token may end their owner.
    for prompt_logprobs in result.prompt_logprobs:
        owner = state.sequences.get(prompt_logprobs.sequence_id)
        if owner is not None:
            state.events.prompt_logprobs.append((owner.key, prompt_logprobs))
    finished = SequenceStatus.FINISHED
    for i, (sequence, token) in enumerate(zip(step.sampled, result.tokens, strict=True)):
        sequence.num_pending -= 1
        if sequence.status is finished:
            continue
        if logprobs is not None and (entry := logprobs[i]) is not None:
            state.events.logprobs[len(keys)] = entry
        keys.append(sequence.key)
        tokens.append(token)
        history = sequence.tokens
        history.append(token)
        if token in sequence.end_token_ids:
            _stop(state, sequence, token)
        elif len(history) >= sequence.max_len:
            end(state, sequence, FinishReason.LENGTH)


def _stop(state: SchedulerState, sequence: Sequence, token: int) -> None:
    """An end token came. EOS is no stop reason; a stop token of the client's is."""
    is_eos = token in sequence.request.eos_token_ids
    end(state, sequence, FinishReason.STOP, stop_token_id=None if is_eos else token)
