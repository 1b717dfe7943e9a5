"""Logprobs of prompt tokens, chunk by chunk as their positions are computed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from common.plan import PromptLogprobs, StepPlan, TokenLogprobs
from executor_service.runner.logprobs import token_logprobs
from executor_service.runner.step_chunks import StepChunks

_ROWS_AT_ONCE = 32
"""Bounds the logits in memory: 32 x 150,000 x 4 bytes is 19 MB."""


def prompt_logprobs(
    plan: StepPlan, step: StepChunks, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]
) -> tuple[PromptLogprobs, ...]:
    """Position p + 1 is judged by the row of position p, so position 0 has no entry.

    hidden: [num_tokens, hidden_size] of the step.
    """
    found = []
    for row, chunk in enumerate(step.chunks):
        spec, start = plan.sequences[chunk], plan.starts[chunk]
        wanted = spec.params.num_prompt_logprobs
        count = min(plan.lengths[chunk], spec.num_prompt_tokens - 1 - start)
        if wanted is None or count < 1:
            continue
        first = step.first_rows[row]
        tokens = plan.token_buffers[chunk][start + 1 : start + 1 + count]
        entries = _entries(hidden[first : first + count], tokens.tolist(), wanted, logits_of)
        found.append(
            PromptLogprobs(
                sequence_id=spec.sequence_id, first_position=start + 1, positions=tuple(entries)
            )
        )
    return tuple(found)


def _entries(
    hidden: Tensor, tokens: list[int], num_best: int, logits_of: Callable[[Tensor], Tensor]
) -> list[TokenLogprobs]:
    entries = []
    for first in range(0, len(tokens), _ROWS_AT_ONCE):
        logits = logits_of(hidden[first : first + _ROWS_AT_ONCE]).cpu().numpy()
        for row, token in zip(logits, tokens[first : first + _ROWS_AT_ONCE], strict=True):
            entries.append(token_logprobs(row, token, num_best))
    return entries
