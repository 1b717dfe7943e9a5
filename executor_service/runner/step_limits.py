"""What bounds a step: memory is measured, graphs are captured and plans are checked by it."""

from __future__ import annotations

from dataclasses import dataclass

from common.protocol import ROWS_PER_SEQUENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The flags as the scheduler obeys them. A chunk is of a sequence with a place in the batch;
    besides these, forks are sampled that have none yet, in one step at most as many as there are
    places."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int

    @property
    def max_chunks(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def max_samples(self) -> int:
        return self.max_chunks + self.max_num_seqs

    @property
    def max_rows(self) -> int:
        return ROWS_PER_SEQUENCE * self.max_num_seqs
