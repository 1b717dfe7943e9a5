"""Builds step plans by hand, chunk by chunk."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from common.plan import SamplingParams, SequenceId, SequenceSpec, StepPlan

GREEDY = SamplingParams(temperature=0.0)


def make_spec(
    sequence_id: int, num_prompt_tokens: int, *, index: int = 0, params: SamplingParams = GREEDY
) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=SequenceId(sequence_id),
        index=index,
        num_prompt_tokens=num_prompt_tokens,
        params=params,
    )


def add_chunk(
    plan: StepPlan,
    spec: SequenceSpec,
    tokens: Iterable[int],
    table: Iterable[int],
    *,
    start: int = 0,
    length: int,
    samples: Sequence[SequenceSpec] = (),
) -> StepPlan:
    history, blocks = array("i", tokens), array("i", table)
    plan.sequences.append(spec)
    plan.starts.append(start)
    plan.lengths.append(length)
    plan.token_buffers.append(history)
    plan.token_lengths.append(len(history))
    plan.table_buffers.append(blocks)
    plan.table_lengths.append(len(blocks))
    plan.num_samples.append(len(samples))
    plan.sampled.extend(samples)
    return plan
