"""What the log says of a plan that an executor found invalid: enough to find the bug, no text."""

from __future__ import annotations

from collections.abc import Collection

from common.plan import SequenceChunk, SequenceId, StepPlan


def dump(plan: StepPlan, sequence_ids: Collection[SequenceId]) -> list[str]:
    """The shape of the plan, then each chunk that computes or samples one of the sequences."""
    lines = [
        f"step {plan.step_id}: {plan.num_chunks} chunks, {plan.num_decodes} decodes,"
        f" {plan.num_tokens} tokens, released {plan.released},"
        f" copies {list(zip(plan.copy_sources, plan.copy_destinations, strict=True))}"
    ]
    for chunk in plan.chunks():
        named = {chunk.spec.sequence_id, *(spec.sequence_id for spec in chunk.samples)}
        if not named.isdisjoint(sequence_ids):
            lines.append(_describe(chunk))
    return lines


def _describe(chunk: SequenceChunk) -> str:
    bounds = f"{min(chunk.tokens)} to {max(chunk.tokens)}" if chunk.tokens else "none"
    return (
        f"sequence {chunk.spec.sequence_id}: [{chunk.start}, {chunk.start + chunk.length}) of"
        f" {len(chunk.tokens)} known tokens (ids {bounds}), blocks {list(chunk.block_ids)},"
        f" samples {[spec.sequence_id for spec in chunk.samples]}, {chunk.spec.params}"
    )
