"""What one executor and its operator allow a core to plan."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Fixed for the life of one core."""

    block_size: int
    """Token slots per block."""
    num_blocks: int
    max_num_seqs: int
    """Sequences with KV at one time."""
    max_num_batched_tokens: int
    """Tokens of one step."""
    max_model_len: int
    """Tokens of a prompt with its outputs."""
    depth: int = 2
    """Steps in flight: 1 waits for each result, 2 plans a step while the one before it runs."""
    enable_prefix_caching: bool = True
    max_decode_stall: float = math.inf
    """How many times as long as if all sequences with a place decoded a step may take that computes
    prompts beside decodes, once costs are known. At least 1."""
    max_num_waiting: int = 1 << 30
    """Sequences in the queue before new requests are refused."""
    vocab_size: int = 1 << 31

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.max_decode_stall >= 1.0:
            raise ValueError(f"max_decode_stall must be at least 1, not {self.max_decode_stall}")
        if self.depth not in (1, 2):
            raise ValueError(f"depth must be 1 or 2, not {self.depth}")

    @property
    def max_num_running(self) -> int:
        """A prompt in progress always progresses: decodes alone can never fill the budget."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def max_sequence_len(self) -> int:
        """Tokens that one sequence alone can reach."""
        return min(self.max_model_len, self.num_blocks * self.block_size)
