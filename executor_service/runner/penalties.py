"""What changes logits before temperature: bias, penalties by history, masked ends."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from common.plan import SamplingParams

Floats = npt.NDArray[np.float32]


def adjusts(params: SamplingParams, num_outputs: int) -> bool:
    """Whether `adjust` would change anything for a row with so many outputs so far."""
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or (num_outputs < params.min_tokens and params.stop_token_ids)
    )


def reads_history(params: SamplingParams) -> bool:
    """Whether sampling looks at earlier tokens."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def adjust(logits: Floats, params: SamplingParams, history: array[int], num_prompt: int) -> None:
    """Applies, in this order and in place: logit bias, the three penalties, the min_tokens mask.

    logits: [vocab_size]. `history` is the prompt, its first `num_prompt` tokens, and all outputs.
    Repetition looks at both, each distinct token once; presence and frequency at outputs alone.
    """
    for token, bias in params.logit_bias:
        logits[token] += np.float32(bias)
    tokens = np.array(history, np.int64)
    if params.repetition_penalty != 1.0:
        seen = np.unique(tokens)
        penalty = np.float32(params.repetition_penalty)
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        outputs, counts = np.unique(tokens[num_prompt:], return_counts=True)
        logits[outputs] -= np.float32(params.presence_penalty)
        logits[outputs] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
    if len(tokens) - num_prompt < params.min_tokens:
        logits[list(params.stop_token_ids)] = -np.inf
