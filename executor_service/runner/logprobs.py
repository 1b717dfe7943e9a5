"""Log-probabilities of the raw model logits: what the model thought, before any sampling rule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.plan import TokenLogprobs

Floats = npt.NDArray[np.float32]


def token_logprobs(logits: Floats, token: int, num_best: int) -> TokenLogprobs:
    """The token's logprob and rank, and the `num_best` most likely in falling order.

    logits: [vocab_size] float32. Of equal logits the lower id counts as better.
    """
    normalizer = _log_sum_exp(logits)
    best = best_tokens(logits, num_best)
    token_ids = [token, *best.tolist()]
    chosen = logits[token]
    rank = 1 + int(np.count_nonzero(logits > chosen))
    rank += int(np.count_nonzero(logits[:token] == chosen))
    values = logits[token_ids].astype(np.float64) - normalizer
    return TokenLogprobs(rank, tuple(token_ids), tuple(values.tolist()))


def best_tokens(logits: Floats, count: int) -> npt.NDArray[np.int64]:
    """Ids of the `count` largest logits, falling; equal ones by rising id."""
    count = min(count, len(logits))
    if count == 0:
        return np.empty(0, np.int64)
    edge = np.partition(logits, -count)[-count]
    above = np.flatnonzero(logits > edge)
    at_edge = np.flatnonzero(logits == edge)[: count - len(above)]
    kept = np.concatenate((above, at_edge))
    return kept[np.lexsort((kept, -logits[kept]))]


def _log_sum_exp(logits: Floats) -> float:
    largest = np.float64(logits.max())
    with np.errstate(invalid="ignore"):  # infinite logits give nan, as they should
        return float(largest + np.log(np.exp(logits - logits.max()).sum(dtype=np.float64)))
