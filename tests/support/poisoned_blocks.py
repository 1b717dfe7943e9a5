"""Blocks of a pool with their holders. Those that nobody holds are full of NaN."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from executor_service.memory.kv_pool import KVPool


class PoisonedBlocks:
    """All of a pool's; none is held at first."""

    def __init__(self, pool: KVPool, rng: random.Random) -> None:
        self._pool = pool
        self._rng = rng
        self._free = list(range(pool.shape.num_blocks))
        self._holders: Counter[int] = Counter()
        pool.poison(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def any_free(self) -> int:
        return self._rng.choice(self._free)

    def take(self, count: int) -> list[int]:
        """Any that are free, each with one holder."""
        self._rng.shuffle(self._free)
        taken = [self._free.pop() for _ in range(count)]
        self.hold(taken)
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        self._holders.update(blocks)

    def drop(self, blocks: Iterable[int]) -> None:
        """One holder less for each."""
        self._holders.subtract(blocks)
        ended = [block for block, count in self._holders.items() if not count]
        for block in ended:
            del self._holders[block]
        self._pool.poison(ended)
        self._free += ended

    def num_holders(self, block: int) -> int:
        return self._holders[block]
