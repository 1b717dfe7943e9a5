"""How static batching serves a queue: sorted by length, one whole batch after the other.

The sort sees every output length beforehand, which no server does: it is to the peer's favour.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.serving.timeline import Timeline
from tests.bench.serving.workloads import Ask

Batch = list[int]
"""Indexes of requests."""


def length_sorted(asks: Sequence[Ask], batch_size: int) -> list[Batch]:
    """Longest outputs first, as a batch runs until its longest one ends."""
    order = sorted(range(len(asks)), key=lambda i: (-asks[i].num_outputs, -len(asks[i].prompt)))
    return [order[at : at + batch_size] for at in range(0, len(order), batch_size)]


def batch_sizes(concurrency: int) -> list[int]:
    """To try for the best one. No batch can be larger than what is in progress at a time."""
    return sorted({max(1, concurrency // divisor) for divisor in (1, 2, 4)}, reverse=True)


def issue(answers: Sequence[Timeline], batches: Sequence[Batch], concurrency: int) -> None:
    """Sets when each request was sent: the first `concurrency` at once, then one as one ends."""
    order = [index for batch in batches for index in batch]
    began_at = min(answer.issued_at for answer in answers)
    ends = sorted(answer.last_at for answer in answers)
    for position, index in enumerate(order):
        waited = position - concurrency
        answers[index].issued_at = began_at if waited < 0 else ends[waited]
