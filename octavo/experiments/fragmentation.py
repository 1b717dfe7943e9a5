"""How much KV memory two ways of allocating it waste, for the same requests.

reserved  each request gets slots for the longest sequence there may be, whatever it needs
paged     a request gets a block when a token needs one: the 17th token takes the second block of 16
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from common.kv_size import blocks_of
from scheduler_service.core.block_pool import BlockPool
from scheduler_service.core.block_table import BlockTable

SHORTEST, LONGEST = 50, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    num_tokens: int
    num_slots: int

    @property
    def waste(self) -> float:
        """Share of the slots that hold no token."""
        return 1.0 - self.num_tokens / self.num_slots


def random_lengths(num_requests: int, seed: int) -> list[int]:
    """Tokens per request, uniform over what a server of 2048 tokens may see."""
    rng = random.Random(seed)
    return [rng.randint(SHORTEST, LONGEST) for _ in range(num_requests)]


def reserved(lengths: Sequence[int], max_model_len: int) -> Allocation:
    return Allocation(num_tokens=sum(lengths), num_slots=len(lengths) * max_model_len)


def paged(lengths: Sequence[int], block_size: int) -> Allocation:
    """Fills real block tables from a real pool, token by token."""
    pool = BlockPool(sum(blocks_of(length, block_size) for length in lengths))
    tables = [_filled_table(pool, length, block_size) for length in lengths]
    num_blocks = sum(map(len, tables))
    return Allocation(num_tokens=sum(lengths), num_slots=num_blocks * block_size)


def _filled_table(pool: BlockPool, length: int, block_size: int) -> BlockTable:
    table = BlockTable()
    for position in range(length):
        if position == len(table) * block_size:
            block_id = pool.take()
            assert block_id is not None, "the pool was made to hold every request"
            table.append(block_id)
    return table
