"""Plans of which some are wrong, and what a runner must make of each.

Sequences run over a small pool whose free blocks are poisoned with NaN: alone, as choices of one
prompt, on blocks that others have written, on blocks that were copied, and on tokens that the step
before has yet to tell. Now and then a plan gets one fault. Rule 1: every sequence that the fault
does not concern samples the token it samples alone. Rule 2: the ones it concerns get the error that
the fault calls for, and lose nothing but this step, unless the fault is that they read what nobody
wrote.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.plan import ErrorCode, SamplingParams, SequenceId, SequenceSpec, StepPlan, StepResult
from executor_service.runner.model_runner import ModelRunner
from tests.support.plan_faults import FAULTS, Expected, Scene
from tests.support.plans import add_chunk, make_spec
from tests.support.poisoned_blocks import PoisonedBlocks

_MAX_SEQUENCES = 6


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


@dataclass(frozen=True, slots=True)
class Turn:
    """What one sequence does in a plan."""

    live: Live
    length: int
    is_doomed: bool = False
    """Its input is a token that the step before failed to sample."""


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of a block, for which the new one stands from then on."""

    live: Live
    index: int
    old: int
    through: list[int]
    """Where the copy goes first, if anywhere."""


class PlanFuzzer:
    """`step` runs one plan. Raises AssertionError if the runner breaks a rule."""

    def __init__(self, runner: ModelRunner, asks: list[Ask], seed: int) -> None:
        self.seen: Counter[str] = Counter()
        """How often plans had what."""
        self._rng = random.Random(seed)
        self._runner = runner
        self._asks = asks
        self._blocks = PoisonedBlocks(runner.pool, self._rng)
        self._live: list[Live] = []
        self._next_id = 1
        self._step_id = 0
        self._fresh: set[SequenceId] = set()
        """Who sampled a token in the step before."""
        self._failed: set[SequenceId] = set()
        """Who should have."""

    @property
    def num_faults(self) -> int:
        return sum(self.seen[fault.__name__] for fault in FAULTS)

    def step(self) -> None:
        while self._num_sequences < _MAX_SEQUENCES and self._rng.random() < 0.7:
            self._start()
        self._step_id += 1
        plan, expected = StepPlan(step_id=self._step_id), Expected()
        turns = self._turns(expected)
        moves = self._move(plan, turns)
        self._copy_forks(plan, turns)
        for turn in turns:
            self._add(plan, turn)
        if turns and self._rng.random() < 0.4:
            fault = self._rng.choice(FAULTS)
            self.seen[fault.__name__] += 1
            fault(Scene(self._rng, self._runner.spec, self._blocks, plan, expected))
        num_sampled = len(plan.sampled)
        result = self._runner.execute(plan)
        found = {error.sequence_id: error.code for error in result.errors}
        assert found == expected.codes, f"{result.errors}, expected {expected.codes}"
        assert len(result.tokens) == num_sampled
        self._settle_copies(turns, moves, expected)
        self._judge(turns, plan, expected, result)
        self._end(expected)

    # Who there is

    @property
    def _num_sequences(self) -> int:
        return sum(1 + len(live.forks) for live in self._live)

    def _start(self) -> None:
        ask = self._rng.choice(self._asks)
        shared = self._written(ask.prompt)
        num_blocks = [self._num_blocks(len(ask.prompt) + len(o)) for o in ask.choices]
        split = (len(ask.prompt) - 1) // self._size
        needed = num_blocks[0] - len(shared) + sum(count - split for count in num_blocks[1:])
        # Some are free for whatever is copied, and to be read by mistake.
        if needed > self._blocks.num_free - 4:
            return
        if shared:
            self.seen["shared prefix"] += 1
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
        self._live.append(first)

    def _new_spec(self, ask: Ask, index: int) -> SequenceSpec:
        self._next_id += 1
        return make_spec(self._next_id, len(ask.prompt), index=index, params=ask.params)

    def _written(self, prompt: tuple[int, ...]) -> list[int]:
        """Blocks of somebody else that hold the most of a prompt, but for its last token."""
        best: list[int] = []
        for live in self._live:
            count = min(live.num_readable, len(prompt) - 1) // self._size
            while tuple(live.tokens[: count * self._size]) != prompt[: count * self._size]:
                count -= 1
            best = max(best, live.table[:count], key=len)
        return best

    # What they do

    def _turns(self, expected: Expected) -> list[Turn]:
        picked = [live for live in self._live if self._rng.random() < 0.8]
        self._rng.shuffle(picked)
        room = self._runner.spec.max_num_batched_tokens - 1
        turns = []
        for live in picked:
            missing = len(live.tokens) - live.computed
            length = missing if self._rng.random() < 0.6 else self._rng.randint(1, missing)
            if live.spec.sequence_id in self._failed and self._rng.random() < 0.5:
                turn = Turn(live, 1, is_doomed=True)
                expected.codes[live.spec.sequence_id] = ErrorCode.INVALID_PLAN
                self.seen["doomed"] += 1
            else:
                turn = Turn(live, min(length, room))
            if not room:
                break
            room -= turn.length
            turns.append(turn)
        return turns

    def _add(self, plan: StepPlan, turn: Turn) -> None:
        live, tokens = turn.live, turn.live.tokens
        start = len(tokens) if turn.is_doomed else live.computed
        samples = [live.spec] if start + turn.length >= len(tokens) else []
        if samples and live.forks and not turn.is_doomed:
            samples += [fork.spec for fork in live.forks]
            self.seen["fork"] += 1
        is_fresh = live.spec.sequence_id in self._fresh and turn.length == 1
        if is_fresh and not turn.is_doomed and self._rng.random() < 0.5:
            tokens = tokens[:-1]
            self.seen["in flight"] += 1
        add_chunk(
            plan, live.spec, tokens, live.table, start=start, length=turn.length, samples=samples
        )

    def _move(self, plan: StepPlan, turns: Sequence[Turn]) -> list[Move]:
        """Copies some blocks that are not written any more."""
        moves = []
        for live in (turn.live for turn in turns):
            count = live.num_readable // self._size
            if not count or self._rng.random() > 0.1 or self._blocks.num_free < 4:
                continue
            self.seen["copy"] += 1
            move = Move(
                live=live,
                index=(index := self._rng.randrange(count)),
                old=live.table[index],
                through=self._blocks.take(self._rng.randrange(2)),
            )
            (live.table[index],) = self._blocks.take(1)
            path = [move.old, *move.through, live.table[index]]
            plan.copy_sources.extend(path[:-1])
            plan.copy_destinations.extend(path[1:])
            moves.append(move)
        return moves

    def _copy_forks(self, plan: StepPlan, turns: Sequence[Turn]) -> None:
        for live in (turn.live for turn in turns):
            if live.copy_from is not None:
                plan.copy_sources.append(live.copy_from)
                plan.copy_destinations.append(live.table[live.split // self._size])

    # What has become of it

    def _settle_copies(
        self, turns: Sequence[Turn], moves: Sequence[Move], expected: Expected
    ) -> None:
        for move in moves:
            unused = move.old
            if expected.is_refused:
                unused, move.live.table[move.index] = move.live.table[move.index], move.old
            self._blocks.drop([unused, *move.through])
        for live in (turn.live for turn in turns):
            if live.copy_from is not None and not expected.is_refused:
                self._blocks.drop([live.copy_from])
                live.copy_from = None

    def _judge(
        self, turns: Sequence[Turn], plan: StepPlan, expected: Expected, result: StepResult
    ) -> None:
        answers = dict(zip((s.sequence_id for s in plan.sampled), result.tokens, strict=True))
        self._fresh, self._failed = set(), set()
        for turn in turns:
            live, end = turn.live, turn.live.computed + turn.length
            if turn.is_doomed or live.spec.sequence_id in expected.spoiled:
                continue
            samples = end == len(live.tokens)
            if not expected.has_run(live.spec.sequence_id):
                self._failed |= {live.spec.sequence_id} if samples else set()
                continue
            live.computed = end
            for member in self._fork(live) if samples else []:
                self._take_answer(member, answers, expected)

    def _fork(self, live: Live) -> list[Live]:
        """It, and those that go on by themselves from the end of its prompt."""
        forks, live.forks = live.forks, []
        split = live.split // self._size
        for fork in forks:
            fork.table[:0] = live.table[:split]
            fork.computed = live.computed
            fork.copy_from = live.table[split]
            self._blocks.hold(live.table[: split + 1])
            self._live.append(fork)
        return [live, *forks]

    def _take_answer(self, live: Live, answers: dict[SequenceId, int], expected: Expected) -> None:
        sequence_id = live.spec.sequence_id
        if sequence_id in expected.codes:
            self._failed.add(sequence_id)
            live.computed -= 1  # Its last token is computed again, to be sampled from.
            return
        assert answers[sequence_id] == live.outputs[live.num_outputs], "a wrong token"
        live.num_outputs += 1
        self._fresh.add(sequence_id)

    def _end(self, expected: Expected) -> None:
        for live in list(self._live):
            is_done = live.num_outputs == len(live.outputs)
            if is_done or live.spec.sequence_id in expected.spoiled:
                self._live.remove(live)
                for ended in (live, *live.forks):
                    self._blocks.drop(ended.table)
                    self._blocks.drop([] if ended.copy_from is None else [ended.copy_from])

    @property
    def _size(self) -> int:
        return self._runner.spec.block_size

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)
