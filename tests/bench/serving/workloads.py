"""What is asked of both sides. Prompts are token ids; every answer has a fixed length.

W1  mixed         32 requests, 16 at once, prompts of 32-256 and outputs of 16-128 tokens
W2  shared prefix 32 requests, 8 at once: 512 tokens that all share, 32-64 of their own, 32 outputs
W3  one stream    a prompt of 64, an output of 128 tokens
W4  interruption  8 streams decode when a prompt of 1500 tokens arrives
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

FIRST_ID, LAST_ID = 100, 49_000
"""Within the vocabulary, above its special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    prompt: tuple[int, ...]
    num_outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """A request that arrives once every stream has `after_outputs` tokens."""

    ask: Ask
    after_outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    asks: tuple[Ask, ...]
    concurrency: int
    """Requests in progress at a time; the next one is sent when one has ended."""
    interruption: Interruption | None = None


def mixed() -> Workload:
    rng = random.Random(1)
    asks = tuple(
        Ask(prompt=_ids(rng, rng.randint(32, 256)), num_outputs=rng.randint(16, 128))
        for _ in range(32)
    )
    return Workload(name="W1", asks=asks, concurrency=16)


def shared_prefix() -> Workload:
    rng = random.Random(2)
    prefix = _ids(rng, 512)
    asks = tuple(
        Ask(prompt=prefix + _ids(rng, rng.randint(32, 64)), num_outputs=32) for _ in range(32)
    )
    return Workload(name="W2", asks=asks, concurrency=8)


def one_stream() -> Workload:
    ask = Ask(prompt=_ids(random.Random(3), 64), num_outputs=128)
    return Workload(name="W3", asks=(ask,), concurrency=1)


def interruption() -> Workload:
    rng = random.Random(4)
    asks = tuple(Ask(prompt=_ids(rng, 64), num_outputs=128) for _ in range(8))
    late = Ask(prompt=_ids(rng, 1500), num_outputs=16)
    return Workload(
        name="W4",
        asks=asks,
        concurrency=8,
        interruption=Interruption(ask=late, after_outputs=32),
    )


def warm_up() -> Workload:
    rng = random.Random(5)
    asks = tuple(Ask(prompt=_ids(rng, 96), num_outputs=8) for _ in range(4))
    return Workload(name="warm-up", asks=asks, concurrency=4)


def wide_warm_up() -> Workload:
    """As many at once as any workload has: some servers compile for each new shape."""
    rng = random.Random(6)
    asks = tuple(
        Ask(prompt=_ids(rng, rng.randint(32, 256)), num_outputs=rng.randint(8, 24))
        for _ in range(20)
    )
    return Workload(name="warm-up", asks=asks, concurrency=16)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "W1": mixed,
    "W2": shared_prefix,
    "W3": one_stream,
    "W4": interruption,
}


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST_ID, LAST_ID) for _ in range(count))
