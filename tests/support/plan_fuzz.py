"""Plans of which some are wrong, and what a runner must make of each.

Sequences run over a small pool whose free blocks are poisoned with NaN. Now and then a plan gets
one fault. Rule 1: every sequence that the fault does not concern samples the token it samples
alone. Rule 2: the ones it concerns get the error that the fault calls for, and lose nothing but
this step, unless the fault is that they read what nobody wrote.
"""

from __future__ import annotations

import dataclasses
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from common.plan import ErrorCode, SamplingParams, SequenceId, SequenceSpec, StepPlan, StepResult
from executor_service.runner.model_runner import ModelRunner
from tests.support.plans import add_chunk, make_spec

HUGE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, how it is sampled, and what it samples alone."""

    prompt: tuple[int, ...]
    params: SamplingParams
    outputs: tuple[int, ...]


@dataclass(slots=True)
class Live:
    ask: Ask
    spec: SequenceSpec
    table: list[int]
    num_outputs: int = 0
    computed: int = 0

    @property
    def tokens(self) -> list[int]:
        return [*self.ask.prompt, *self.ask.outputs[: self.num_outputs]]


@dataclass(slots=True)
class Expected:
    """Of one plan: whose error has which code. Everybody else's answer is right."""

    codes: dict[SequenceId, ErrorCode] = field(default_factory=dict)
    spoiled: set[SequenceId] = field(default_factory=set)
    """Whose KV is worth nothing from now on."""


Fault = Callable[["PlanFuzzer", StepPlan, list[Live], Expected], None]


class PlanFuzzer:
    """`step` runs one plan. Raises AssertionError if the runner breaks a rule."""

    def __init__(self, runner: ModelRunner, asks: list[Ask], seed: int) -> None:
        self.rng = random.Random(seed)
        self.runner = runner
        self.num_faults = 0
        self._asks = asks
        self._free = list(range(runner.spec.num_blocks))
        self._live: list[Live] = []
        self._next_id = 1
        self._step_id = 0
        runner.pool.poison(self._free)

    def step(self) -> None:
        while len(self._live) < 6 and self.rng.random() < 0.7:
            self._start()
        picked = [live for live in self._live if self.rng.random() < 0.8]
        self.rng.shuffle(picked)
        plan = self._plan(picked)
        expected = Expected()
        if picked and self.rng.random() < 0.4:
            self.num_faults += 1
            self.rng.choice(FAULTS)(self, plan, picked, expected)
        self._judge(plan, picked, expected, self.runner.execute(plan))

    def _start(self) -> None:
        ask = self.rng.choice(self._asks)
        size = self.runner.spec.block_size
        count = -(-(len(ask.prompt) + len(ask.outputs)) // size)
        if count <= len(self._free) - 1:  # one free block is there to be read by mistake
            self.rng.shuffle(self._free)
            table = [self._free.pop() for _ in range(count)]
            spec = make_spec(self._next_id, len(ask.prompt), params=ask.params)
            self._live.append(Live(ask, spec, table))
            self._next_id += 1

    def _plan(self, picked: list[Live]) -> StepPlan:
        self._step_id += 1
        plan = StepPlan(step_id=self._step_id)
        for live in picked:
            missing = len(live.tokens) - live.computed
            length = missing if self.rng.random() < 0.6 else self.rng.randint(1, missing)
            add_chunk(
                plan,
                live.spec,
                live.tokens,
                live.table,
                start=live.computed,
                length=length,
                samples=[live.spec] if length == missing else [],
            )
        return plan

    def _judge(
        self, plan: StepPlan, picked: list[Live], expected: Expected, result: StepResult
    ) -> None:
        found = {error.sequence_id: error.code for error in result.errors}
        assert found == expected.codes, f"{result.errors}, expected {expected.codes}"
        assert len(result.tokens) == len(plan.sampled)
        answers = dict(zip((s.sequence_id for s in plan.sampled), result.tokens, strict=True))
        for live, length in zip(picked, list(plan.lengths)[: len(picked)], strict=False):
            sequence_id = live.spec.sequence_id
            if sequence_id in found or sequence_id in expected.spoiled:
                continue
            live.computed += length
            if sequence_id in answers:
                assert answers[sequence_id] == live.ask.outputs[live.num_outputs], "a wrong token"
                live.num_outputs += 1
        for live in list(self._live):
            done = live.num_outputs == len(live.ask.outputs)
            if done or live.spec.sequence_id in expected.spoiled:
                self._live.remove(live)
                self.runner.pool.poison(live.table)
                self._free += live.table

    # What faults are made of

    def victim(self, picked: list[Live]) -> int:
        return self.rng.randrange(len(picked))

    def free_block(self) -> int:
        return self.rng.choice(self._free)

    def bad_block(self) -> int:
        limit = self.runner.spec.num_blocks
        return self.rng.choice((-1, limit, limit + 1, HUGE, -HUGE))

    def bad_token(self) -> int:
        limit = self.runner.spec.vocab_size
        return self.rng.choice((-1, limit, HUGE, -HUGE))


def _invalid(picked: list[Live], i: int, expected: Expected) -> None:
    expected.codes[picked[i].spec.sequence_id] = ErrorCode.INVALID_PLAN


def _edit(buffers: list[array[int]], i: int, position: int, value: int) -> None:
    buffers[i] = buffers[i][:]
    buffers[i][position] = value


def wrong_block(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    i = fuzz.victim(picked)
    needed = -(-(plan.starts[i] + plan.lengths[i]) // fuzz.runner.spec.block_size)
    _edit(plan.table_buffers, i, fuzz.rng.randrange(needed), fuzz.bad_block())
    _invalid(picked, i, expected)


def wrong_token(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    i = fuzz.victim(picked)
    position = plan.starts[i] + fuzz.rng.randrange(plan.lengths[i])
    _edit(plan.token_buffers, i, position, fuzz.bad_token())
    _invalid(picked, i, expected)


def wrong_span(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    i = fuzz.victim(picked)
    if fuzz.rng.random() < 0.5:
        plan.starts[i] = fuzz.rng.choice((-1, -HUGE, HUGE, fuzz.runner.spec.max_model_len))
    else:
        plan.lengths[i] = fuzz.rng.choice((0, -1, HUGE, fuzz.runner.spec.max_model_len + 1))
    _invalid(picked, i, expected)


def short_table(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    i = fuzz.victim(picked)
    needed = -(-(plan.starts[i] + plan.lengths[i]) // fuzz.runner.spec.block_size)
    plan.table_lengths[i] = fuzz.rng.choice((needed - 1, len(plan.table_buffers[i]) + 1, HUGE))
    _invalid(picked, i, expected)


def short_history(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    i = fuzz.victim(picked)
    plan.token_lengths[i] = fuzz.rng.choice((plan.starts[i], len(plan.token_buffers[i]) + 1))
    if plan.token_lengths[i] == plan.starts[i] and plan.lengths[i] == 1:
        plan.token_lengths[i] = HUGE  # else it would be a token of the step before
    _invalid(picked, i, expected)


def unsampled_input(
    fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected
) -> None:
    """Names a token that the step before sampled for nobody: the id is new."""
    i = fuzz.victim(picked)
    stranger = dataclasses.replace(plan.sequences[i], sequence_id=SequenceId(HUGE))
    table = [fuzz.free_block()]
    add_chunk(plan, stranger, [], table, start=0, length=1, samples=[stranger])
    expected.codes[stranger.sequence_id] = ErrorCode.INVALID_PLAN


def shared_write(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    """A stranger writes the block that another chunk writes."""
    i = fuzz.victim(picked)
    block = plan.table_buffers[i][plan.starts[i] // fuzz.runner.spec.block_size]
    stranger = make_spec(HUGE, 1)
    add_chunk(plan, stranger, [11], [block], length=1, samples=[stranger])
    _invalid(picked, i, expected)
    expected.codes[stranger.sequence_id] = ErrorCode.INVALID_PLAN


def foreign_read(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    """A stranger attends to the block that another chunk writes."""
    i, size = fuzz.victim(picked), fuzz.runner.spec.block_size
    block = plan.table_buffers[i][plan.starts[i] // size]
    stranger = make_spec(HUGE, size)
    add_chunk(plan, stranger, [11] * (size + 1), [block, fuzz.free_block()], start=size, length=1)
    _invalid(picked, i, expected)
    expected.codes[stranger.sequence_id] = ErrorCode.INVALID_PLAN


def twice(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    i = fuzz.victim(picked)
    add_chunk(plan, picked[i].spec, [11], [fuzz.free_block()], length=1)
    _invalid(picked, i, expected)


def wrong_params(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    """Costs the sample only; the chunk's KV is as good as ever, but nobody relies on it here."""
    if not plan.sampled:
        return
    k = fuzz.rng.randrange(len(plan.sampled))
    wrong: dict[str, Any] = fuzz.rng.choice(
        [
            {"temperature": float("nan")},
            {"temperature": -1.0},
            {"top_p": 0.0},
            {"min_p": 2.0},
            {"top_k": -1},
            {"repetition_penalty": 0.0},
            {"logit_bias": ((fuzz.bad_token(), 1.0),)},
            {"logit_bias": ((5, float("inf")),)},
            {"stop_token_ids": (fuzz.bad_token(),)},
            {"num_logprobs": -1},
        ]
    )
    spec = plan.sampled[k]
    params = dataclasses.replace(spec.params, **wrong)
    plan.sampled[k] = dataclasses.replace(spec, params=params)
    expected.codes[spec.sequence_id] = ErrorCode.INVALID_PLAN


def wrong_copy(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    """Into a table: fails its sequence. From nowhere to nowhere: does nothing."""
    i = fuzz.victim(picked)
    plan.copy_sources.append(fuzz.bad_block())
    if fuzz.rng.random() < 0.5:
        plan.copy_destinations.append(plan.table_buffers[i][0])
        _invalid(picked, i, expected)
    else:
        plan.copy_destinations.append(fuzz.bad_block())


def torn_columns(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    column = fuzz.rng.choice((plan.starts, plan.lengths, plan.table_lengths, plan.num_samples))
    if fuzz.rng.random() < 0.5:
        column.append(1)
    else:
        column.pop()
    for spec in (*plan.sequences, *plan.sampled):
        expected.codes[spec.sequence_id] = ErrorCode.INVALID_PLAN


def poisoned_read(fuzz: PlanFuzzer, plan: StepPlan, picked: list[Live], expected: Expected) -> None:
    """A block that nobody wrote stands for one that was computed."""
    size = fuzz.runner.spec.block_size
    known = [i for i in range(len(picked)) if plan.starts[i] >= size and plan.num_samples[i]]
    if known:
        i = fuzz.rng.choice(known)
        position = fuzz.rng.randrange(plan.starts[i] // size)
        _edit(plan.table_buffers, i, position, fuzz.free_block())
        expected.codes[picked[i].spec.sequence_id] = ErrorCode.NON_FINITE
        expected.spoiled.add(picked[i].spec.sequence_id)


FAULTS: tuple[Fault, ...] = (
    wrong_block,
    wrong_token,
    wrong_span,
    short_table,
    short_history,
    unsampled_input,
    shared_write,
    foreign_read,
    twice,
    wrong_params,
    wrong_copy,
    torn_columns,
    poisoned_read,
)
