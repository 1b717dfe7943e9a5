"""The settings that must not change a single output token, and a small cover of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from scheduler_service.core.limits import SchedulerLimits

BLOCK_SIZE = 16

Switch = Literal["on", "off"]
Depth = Literal[1, 2]
Pool = Literal["ample", "tight"]


@dataclass(frozen=True, slots=True)
class Setting:
    batch: int
    """max_num_seqs. 1: every prompt runs alone; more: they arrive a few steps apart."""
    chunk_budget: int
    """max_num_batched_tokens."""
    prefix_cache: Switch
    depth: Depth
    pool: Pool
    """tight: hardly more blocks than the longest sequence needs, so that others are preempted."""

    def __str__(self) -> str:
        return (
            f"batch{self.batch}-chunk{self.chunk_budget}-cache_{self.prefix_cache}"
            f"-depth{self.depth}-{self.pool}"
        )

    @property
    def preempts(self) -> bool:
        return self.pool == "tight" and self.batch > 1

    def limits(
        self, *, num_blocks: int, longest: int, vocab_size: int, max_model_len: int
    ) -> SchedulerLimits:
        """`longest`: tokens of the longest sequence, outputs included."""
        if self.pool == "tight":
            num_blocks = min(num_blocks, -(-longest // BLOCK_SIZE) + 2)
        return SchedulerLimits(
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_num_seqs=self.batch,
            max_num_batched_tokens=self.chunk_budget,
            max_model_len=max_model_len,
            depth=self.depth,
            enable_prefix_caching=self.prefix_cache == "on",
            max_num_waiting=1024,
            vocab_size=vocab_size,
        )


_BATCHES = (1, 4, 16)
_BUDGETS = (16, 64, 512)
_SWITCHES: tuple[Switch, ...] = ("on", "off")
_DEPTHS: tuple[Depth, ...] = (1, 2)
_POOLS: tuple[Pool, ...] = ("ample", "tight")

ALL_SETTINGS = tuple(
    Setting(batch, budget, prefix_cache, depth, pool)
    for batch, budget, prefix_cache, depth, pool in itertools.product(
        _BATCHES, _BUDGETS, _SWITCHES, _DEPTHS, _POOLS
    )
    if not (batch == 1 and pool == "tight")  # one sequence has nobody to be preempted for
)

PAIRWISE_SETTINGS = (
    Setting(1, 16, "on", 2, "ample"),
    Setting(1, 64, "off", 1, "ample"),
    Setting(1, 512, "off", 1, "ample"),
    Setting(4, 16, "off", 2, "tight"),
    Setting(4, 64, "on", 2, "tight"),
    Setting(4, 512, "on", 1, "ample"),
    Setting(16, 16, "off", 1, "tight"),
    Setting(16, 64, "off", 1, "ample"),
    Setting(16, 512, "on", 2, "tight"),
)
"""Each two values of different fields that can occur together do so in one of these."""
