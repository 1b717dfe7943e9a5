"""The sequences of a fuzz, with the blocks that they hold.

One reads what others have written of its prompt, and choices of one prompt fork at its end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from common.plan import SamplingParams, SequenceSpec
from tests.support.plans import make_spec
from tests.support.poisoned_blocks import PoisonedBlocks


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, how it is sampled, and what each choice of it samples alone."""

    prompt: tuple[int, ...]
    params: SamplingParams
    choices: tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class Live:
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]
    """That it is to sample."""
    spec: SequenceSpec
    table: list[int]
    """Of a fork that waits: the blocks that will be its own."""
    num_outputs: int = 0
    computed: int = 0
    forks: list[Live] = field(default_factory=list)
    """Other choices, which wait for the prompt's end."""
    copy_from: int | None = None
    """What its block of the prompt's end is to be copied from, before it runs."""

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.outputs[: self.num_outputs]]

    @property
    def num_readable(self) -> int:
        """Tokens whose KV is in its blocks."""
        return self.computed if self.copy_from is None else min(self.computed, self.split)

    @property
    def split(self) -> int:
        """Where a fork may differ: its input there is a token of its own."""
        return len(self.prompt) - 1


class FuzzedSequences:
    """Those that run, in blocks of `block_size` tokens."""

    def __init__(
        self, asks: list[Ask], blocks: PoisonedBlocks, block_size: int, rng: random.Random
    ) -> None:
        self.live: list[Live] = []
        self._asks = asks
        self._blocks = blocks
        self._size = block_size
        self._rng = rng
        self._next_id = 1

    @property
    def num_sequences(self) -> int:
        """With those that wait for their prompt's end."""
        return sum(1 + len(live.forks) for live in self.live)

    def start(self) -> Live | None:
        """None if there is no room."""
        ask = self._rng.choice(self._asks)
        shared = self._written(ask.prompt)
        num_blocks = [self._num_blocks(len(ask.prompt) + len(o)) for o in ask.choices]
        split = (len(ask.prompt) - 1) // self._size
        needed = num_blocks[0] - len(shared) + sum(count - split for count in num_blocks[1:])
        # Some are free for whatever is copied, and to be read by mistake.
        if needed > self._blocks.num_free - 4:
            return None
        self._blocks.hold(shared)
        first, *forks = (
            Live(ask.prompt, outputs, self._new_spec(ask, index), [])
            for index, outputs in enumerate(ask.choices)
        )
        first.table = shared + self._blocks.take(num_blocks[0] - len(shared))
        first.computed = len(shared) * self._size
        first.forks = forks
        for fork, count in zip(forks, num_blocks[1:], strict=True):
            fork.table = self._blocks.take(count - split)
        self.live.append(first)
        return first

    def fork(self, live: Live) -> list[Live]:
        """It, and those that go on by themselves from the end of its prompt."""
        forks, live.forks = live.forks, []
        split = live.split // self._size
        for fork in forks:
            fork.table[:0] = live.table[:split]
            fork.computed = live.computed
            fork.copy_from = live.table[split]
            self._blocks.hold(live.table[: split + 1])
            self.live.append(fork)
        return [live, *forks]

    def end(self, live: Live) -> None:
        """With those that wait for it."""
        self.live.remove(live)
        for ended in (live, *live.forks):
            self._blocks.drop(ended.table)
            self._blocks.drop([] if ended.copy_from is None else [ended.copy_from])

    def _new_spec(self, ask: Ask, index: int) -> SequenceSpec:
        self._next_id += 1
        return make_spec(self._next_id, len(ask.prompt), index=index, params=ask.params)

    def _written(self, prompt: tuple[int, ...]) -> list[int]:
        """Blocks of somebody else that hold the most of a prompt, but for its last token."""
        best: list[int] = []
        for live in self.live:
            count = min(live.num_readable, len(prompt) - 1) // self._size
            while tuple(live.tokens[: count * self._size]) != prompt[: count * self._size]:
                count -= 1
            best = max(best, live.table[:count], key=len)
        return best

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)
