"""Random limits, requests and events: the same choices serve the seeded driver."""

from __future__ import annotations

import random
from collections.abc import Callable

from common.plan import SequenceId
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.request import CacheRoot, Request
from scheduler_service.core.step_budget import StepCosts
from tests.simulation.ledger import Choice
from tests.simulation.wire import CodecWire, DirectWire
from tests.simulation.world import ROOT_SHIFT, World
from tests.support.builders import make_limits, make_request
from tests.support.shadow_model import ShadowModel

VOCAB_SIZE = 60
EOS = 2
STOP = 3
ROOTS = (
    CacheRoot(),
    CacheRoot(cache_salt="a"),
    CacheRoot(tenant="a"),
    CacheRoot(adapter="a"),
)


def random_limits(rng: random.Random) -> SchedulerLimits:
    return _tight_limits(rng) if rng.random() < 0.4 else _any_limits(rng)


def _tight_limits(rng: random.Random) -> SchedulerLimits:
    """Several choices in a pool for about one of them; chunks of a few tokens."""
    return make_limits(
        block_size=rng.choice((2, 3, 4)),
        num_blocks=rng.randint(4, 14),
        max_num_seqs=rng.choice((3, 8, 16)),
        max_num_batched_tokens=rng.choice((2, 5, 16, 64)),
        max_model_len=rng.choice((20, 40)),
        depth=rng.choice((1, 2, 2)),
        enable_prefix_caching=rng.random() < 0.8,
        vocab_size=VOCAB_SIZE,
    )


def _any_limits(rng: random.Random) -> SchedulerLimits:
    block_size = rng.choice((1, 2, 4, 4, 16))
    return make_limits(
        block_size=block_size,
        num_blocks=rng.choice((4, 8, 12, 24, 40)) * max(1, 4 // block_size),
        max_num_seqs=rng.choice((1, 2, 4, 8)),
        max_num_batched_tokens=rng.choice((1, 3, 8, 16, 64)),
        max_model_len=rng.choice((24, 60, 100)),
        depth=rng.choice((1, 2)),
        max_decode_stall=rng.choice((1.0, 2.0, 10.0)),
        enable_prefix_caching=rng.random() < 0.75,
        max_num_waiting=rng.choice((2, 8, 1000)),
        vocab_size=VOCAB_SIZE,
    )


def random_model(rng: random.Random) -> ShadowModel:
    return ShadowModel(vocab_size=VOCAB_SIZE, eos_token_id=EOS, eos_period=rng.choice((0, 6, 20)))


class Prompts:
    """Prompts that share beginnings, whole prompts and nothing."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._bases = [self._ids(rng.randint(1, 40)) for _ in range(4)]

    def _ids(self, count: int) -> list[int]:
        return [self._rng.randrange(10, VOCAB_SIZE) for _ in range(count)]

    def draw(self) -> list[int]:
        base = self._rng.choice(self._bases)
        kind = self._rng.random()
        if kind < 0.3:
            return list(base)
        if kind < 0.7:
            return base[: self._rng.randint(0, len(base))] + self._ids(self._rng.randint(1, 8))
        return self._ids(self._rng.randint(1, 30))


def random_request(rng: random.Random, request_id: str, prompt: list[int], now: float) -> Request:
    root = rng.randrange(len(ROOTS)) if rng.random() < 0.3 else 0
    return make_request(
        request_id,
        prompt,
        n=rng.choice((1, 1, 1, 2, 3, 5, 8)),
        max_tokens=rng.choice((None, 1, 2, 5, 12, 30)),
        temperature=rng.choice((0.0, 0.8)),
        seed=root << ROOT_SHIFT | rng.randrange(3),
        eos_token_ids=(EOS,) if rng.random() < 0.8 else (),
        stop_token_ids=(STOP, 11) if rng.random() < 0.3 else (),
        min_tokens=rng.choice((0, 0, 0, 4)),
        num_logprobs=rng.choice((None, None, None, 0, 2)),
        num_prompt_logprobs=rng.choice((None,) * 7 + (1,)),
        deadline=now + rng.randint(1, 60) if rng.random() < 0.2 else None,
        cache_root=ROOTS[root],
    )


class Driver:
    """One seed, one run. Mostly steps; now and then something goes wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.limits = random_limits(self.rng)
        wire = self.rng.choice((DirectWire(), CodecWire(self.limits.max_num_seqs)))
        self.world = World(self.limits, random_model(self.rng), wire)
        self._prompts = Prompts(self.rng)
        self._now = 0.0
        self._num_requests = 0
        self._load = self.rng.choice((1, 3, 10))
        """Choices alive at a time, about."""
        self._trouble = self.rng.choice((0.02, 0.1, 0.3))

    def run(self, num_steps: int) -> None:
        while self.world.num_steps < num_steps:
            self._event()
        self.world.drain()

    def _event(self) -> None:
        rng, world = self.rng, self.world
        self._now += rng.random()
        if len(world.ledger.live()) < self._load and rng.random() < 0.5:
            self._add()
        elif rng.random() < self._trouble:
            troubles = self._troubles()
            rng.choices(list(troubles), list(troubles.values()))[0]()
        elif rng.random() < 0.5:
            world.deliver()
        elif rng.random() < 0.3:
            world.execute()
        else:
            world.plan() or world.deliver()

    def _troubles(self) -> dict[Callable[[], None], int]:
        """What can go wrong, by how often."""
        return {
            self._abort: 5,
            self._finish: 5,
            self._preempt: 5,
            self._fail: 2,
            self._expire: 3,
            self._move: 3,
            self._break_stream: 2,
            self._restart: 1,
            self._repeat: 2,
            self.world.overtake: 2,
            self.world.reset_prefix_cache: 1,
            self._burst: 1,
            self._learn: 1,
        }

    def _add(self) -> None:
        self._num_requests += 1
        request_id = f"r{self._num_requests}"
        prompt = self._next_turn() if self.rng.random() < 0.2 else self._prompts.draw()
        self.world.add(random_request(self.rng, request_id, prompt, self._now))

    def _next_turn(self) -> list[int]:
        """An earlier answer comes back as part of a prompt."""
        choices = self.world.choices()[-30:]
        if not choices:
            return self._prompts.draw()
        choice = self.rng.choice(choices)
        return [*choice.request.prompt_token_ids, *choice.tokens, 10]

    def _burst(self) -> None:
        for _ in range(self.rng.randint(2, 6)):
            self._add()

    def _learn(self) -> None:
        costs = (self.rng.choice((0.0, 1e-3, 1.0)) * self.rng.random() for _ in range(3))
        self.world.scheduler.expect(StepCosts(*costs))

    def _live(self) -> Choice | None:
        live = self.world.ledger.live()
        return self.rng.choice(live) if live else None

    def _sequence(self) -> tuple[Choice, SequenceId] | None:
        choice = self._live()
        if choice is None:
            return None
        sequence_id = self.world.scheduler.sequence_id_of(choice.key)
        return None if sequence_id is None else (choice, sequence_id)

    def _abort(self) -> None:
        choice = self._live()
        if choice is not None:
            self.world.abort(choice.request.request_id)

    def _finish(self) -> None:
        found = self._sequence()
        if found is not None and found[0].tokens:
            length = self.rng.randint(max(1, len(found[0].tokens) - 2), len(found[0].tokens))
            self.world.finish(found[1], length)

    def _preempt(self) -> None:
        found = self._sequence()
        if found is not None:
            self.world.preempt(found[1])

    def _fail(self) -> None:
        found = self._sequence()
        if found is not None:
            self.world.fail_next(found[1])

    def _expire(self) -> None:
        self.world.expire(self._now)

    def _move(self) -> None:
        if self.world.moving:
            self.world.give_back()
        else:
            self.world.take_waiting(self.rng.randint(1, 4))

    def _break_stream(self) -> None:
        self.world.break_stream(self.rng.randint(0, 1))

    def _restart(self) -> None:
        self.world.restart_executor()

    def _repeat(self) -> None:
        self.world.repeat_result(self.rng.randrange(4))
