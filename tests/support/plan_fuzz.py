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
from dataclasses import dataclass

from common.plan import ErrorCode, SequenceId, StepPlan, StepResult
from executor_service.runner.model_runner import ModelRunner
from tests.support.fuzzed_sequences import Ask, FuzzedSequences, Live
from tests.support.plan_faults import FAULTS, Expected, Scene, inject
from tests.support.plans import add_chunk
from tests.support.poisoned_blocks import PoisonedBlocks

_MAX_SEQUENCES = 6


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
        self._size = runner.spec.block_size
        self._blocks = PoisonedBlocks(runner.pool, self._rng)
        self._sequences = FuzzedSequences(asks, self._blocks, self._size, self._rng)
        self._step_id = 0
        self._fresh: set[SequenceId] = set()
        """Who sampled a token in the step before."""
        self._failed: set[SequenceId] = set()
        """Who should have."""

    @property
    def num_faults(self) -> int:
        return sum(self.seen[fault.__name__] for fault in FAULTS)

    def step(self) -> None:
        while self._sequences.num_sequences < _MAX_SEQUENCES and self._rng.random() < 0.7:
            started = self._sequences.start()
            if started is not None and started.computed:
                self.seen["shared prefix"] += 1
        self._step_id += 1
        plan, expected = StepPlan(step_id=self._step_id), Expected()
        turns = self._turns(expected)
        moves = self._move(plan, turns)
        self._copy_forks(plan, turns)
        for turn in turns:
            self._add(plan, turn)
        if turns and self._rng.random() < 0.4:
            fault = self._rng.choice(FAULTS)
            scene = Scene(self._rng, self._runner.spec, self._blocks, plan, expected)
            if inject(fault, scene):
                self.seen[fault.__name__] += 1
        num_sampled = len(plan.sampled)
        result = self._runner.execute(plan)
        found = {error.sequence_id: error.code for error in result.errors}
        assert found == expected.codes, f"{result.errors}, expected {expected.codes}"
        assert len(result.tokens) == num_sampled
        self._settle_copies(turns, moves, expected)
        self._judge(turns, plan, expected, result)
        self._end(expected)

    # What they do

    def _turns(self, expected: Expected) -> list[Turn]:
        picked = [live for live in self._sequences.live if self._rng.random() < 0.8]
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
            for member in self._sequences.fork(live) if samples else []:
                self._take_answer(member, answers, expected)

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
        for live in list(self._sequences.live):
            is_done = live.num_outputs == len(live.outputs)
            if is_done or live.spec.sequence_id in expected.spoiled:
                self._sequences.end(live)
