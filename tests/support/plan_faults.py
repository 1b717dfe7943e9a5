"""One fault in a plan, of each kind there is, and whose error it calls for."""

from __future__ import annotations

import dataclasses
import random
from array import array
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from common.plan import ErrorCode, SequenceId, StepPlan
from executor_service.runner.spec import ExecutorSpec
from tests.support.plans import add_chunk, make_spec
from tests.support.poisoned_blocks import PoisonedBlocks

HUGE = 2**31 - 1


@dataclass(slots=True)
class Expected:
    """Of one plan: whose error has which code. Everybody else's answer is right."""

    codes: dict[SequenceId, ErrorCode] = field(default_factory=dict)
    unsampled: set[SequenceId] = field(default_factory=set)
    """Whose chunk ran, for all that."""
    spoiled: set[SequenceId] = field(default_factory=set)
    """Whose KV is worth nothing from now on."""
    is_refused: bool = False
    """The whole plan, with its copies."""

    def has_run(self, sequence_id: SequenceId) -> bool:
        return sequence_id not in self.codes or sequence_id in self.unsampled


@dataclass(frozen=True, slots=True)
class Scene:
    """A plan that was right so far, with at least one chunk."""

    rng: random.Random
    spec: ExecutorSpec
    blocks: PoisonedBlocks
    plan: StepPlan
    expected: Expected

    def any_chunk(self) -> int:
        return self.rng.randrange(self.plan.num_chunks)

    def num_needed(self, i: int) -> int:
        """Blocks that chunk i reaches to."""
        return -(-(self.plan.starts[i] + self.plan.lengths[i]) // self.spec.block_size)

    def first_written(self, i: int) -> int:
        return self.plan.table_buffers[i][self.plan.starts[i] // self.spec.block_size]

    def bad_block(self) -> int:
        limit = self.spec.num_blocks
        return self.rng.choice((-1, limit, limit + 1, HUGE, -HUGE))

    def bad_token(self) -> int:
        limit = self.spec.vocab_size
        return self.rng.choice((-1, limit, HUGE, -HUGE))

    def fail_chunk(self, i: int, code: ErrorCode = ErrorCode.INVALID_PLAN) -> None:
        """It, and all that sample from it."""
        first = sum(self.plan.num_samples[:i])
        sampled = self.plan.sampled[first : first + self.plan.num_samples[i]]
        for spec in (self.plan.sequences[i], *sampled):
            self.expected.codes[spec.sequence_id] = code

    def fail(self, sequence_id: SequenceId) -> None:
        self.expected.codes[sequence_id] = ErrorCode.INVALID_PLAN


Fault = Callable[[Scene], None]
"""May find nothing to spoil, and leave the plan as it is."""


def inject(fault: Fault, scene: Scene) -> bool:
    """Whether the plan is another one for it."""
    plan = scene.plan
    before = StepPlan(**{f.name: copy(getattr(plan, f.name)) for f in dataclasses.fields(plan)})
    fault(scene)
    return plan != before


def _edit(buffers: list[array[int]], i: int, position: int, value: int) -> None:
    buffers[i] = buffers[i][:]
    buffers[i][position] = value


def wrong_block(scene: Scene) -> None:
    i = scene.any_chunk()
    position = scene.rng.randrange(scene.num_needed(i))
    _edit(scene.plan.table_buffers, i, position, scene.bad_block())
    scene.fail_chunk(i)


def wrong_token(scene: Scene) -> None:
    i, plan = scene.any_chunk(), scene.plan
    if plan.token_lengths[i] == plan.starts[i]:
        return  # Its token comes from the step before.
    position = plan.starts[i] + scene.rng.randrange(plan.lengths[i])
    _edit(plan.token_buffers, i, position, scene.bad_token())
    scene.fail_chunk(i)


def wrong_span(scene: Scene) -> None:
    i, limit = scene.any_chunk(), scene.spec.max_model_len
    if scene.rng.random() < 0.5:
        scene.plan.starts[i] = scene.rng.choice((-1, -HUGE, HUGE, limit))
    else:
        scene.plan.lengths[i] = scene.rng.choice((0, -1, HUGE, limit + 1))
    scene.fail_chunk(i)


def short_table(scene: Scene) -> None:
    i = scene.any_chunk()
    beyond = len(scene.plan.table_buffers[i]) + 1
    scene.plan.table_lengths[i] = scene.rng.choice((scene.num_needed(i) - 1, beyond, HUGE))
    scene.fail_chunk(i)


def short_history(scene: Scene) -> None:
    i, plan = scene.any_chunk(), scene.plan
    short = plan.starts[i] if plan.lengths[i] > 1 else plan.starts[i] - 1
    # One less than nothing would be a plan that is wrong as a whole.
    choices = [len(plan.token_buffers[i]) + 1, HUGE, *([short] if short >= 0 else [])]
    plan.token_lengths[i] = scene.rng.choice(choices)
    scene.fail_chunk(i)


def unsampled_input(scene: Scene) -> None:
    """Names a token that the step before sampled for nobody: the id is new."""
    stranger = make_spec(HUGE, 0)
    table = [scene.blocks.any_free()]
    add_chunk(scene.plan, stranger, [], table, start=0, length=1, samples=[stranger])
    scene.fail(stranger.sequence_id)


def shared_write(scene: Scene) -> None:
    """A stranger writes the block that another chunk writes."""
    i, stranger = scene.any_chunk(), make_spec(HUGE, 1)
    table = [scene.first_written(i)]
    add_chunk(scene.plan, stranger, [11], table, length=1, samples=[stranger])
    scene.fail_chunk(i)
    scene.fail(stranger.sequence_id)


def foreign_read(scene: Scene) -> None:
    """A stranger attends to the block that another chunk writes."""
    i, size = scene.any_chunk(), scene.spec.block_size
    stranger = make_spec(HUGE, size)
    table = [scene.first_written(i), scene.blocks.any_free()]
    add_chunk(scene.plan, stranger, [11] * (size + 1), table, start=size, length=1)
    scene.fail_chunk(i)
    scene.fail(stranger.sequence_id)


def twice(scene: Scene) -> None:
    i = scene.any_chunk()
    table = [scene.blocks.any_free()]
    add_chunk(scene.plan, scene.plan.sequences[i], [11], table, length=1)
    scene.fail_chunk(i)


def wrong_params(scene: Scene) -> None:
    """Costs the sample only; the chunk's KV is as good as ever."""
    plan = scene.plan
    known = [k for k, s in enumerate(plan.sampled) if s.sequence_id not in scene.expected.codes]
    if not known:
        return
    k = scene.rng.choice(known)
    wrong: dict[str, Any] = scene.rng.choice(
        [
            {"temperature": float("nan")},
            {"temperature": -1.0},
            {"top_p": 0.0},
            {"min_p": 2.0},
            {"top_k": -1},
            {"repetition_penalty": 0.0},
            {"logit_bias": ((scene.bad_token(), 1.0),)},
            {"logit_bias": ((5, float("inf")),)},
            {"stop_token_ids": (scene.bad_token(),)},
            {"num_logprobs": -1},
        ]
    )
    spec = plan.sampled[k]
    params = dataclasses.replace(spec.params, **wrong)
    plan.sampled[k] = dataclasses.replace(spec, params=params)
    scene.fail(spec.sequence_id)
    scene.expected.unsampled.add(spec.sequence_id)


def wrong_copy(scene: Scene) -> None:
    """Into a table: fails those who have it. From nowhere to nowhere: does nothing."""
    i, plan = scene.any_chunk(), scene.plan
    plan.copy_sources.append(scene.bad_block())
    if scene.rng.random() < 0.5:
        plan.copy_destinations.append(scene.bad_block())
        return
    block = scene.rng.choice(plan.table_buffers[i])
    plan.copy_destinations.append(block)
    for j, table in enumerate(plan.table_buffers):
        if block in table:
            scene.fail_chunk(j)


def torn_columns(scene: Scene) -> None:
    plan = scene.plan
    column = scene.rng.choice((plan.starts, plan.lengths, plan.table_lengths, plan.num_samples))
    if scene.rng.random() < 0.5:
        column.append(1)
    else:
        column.pop()
    for spec in (*plan.sequences, *plan.sampled):
        scene.fail(spec.sequence_id)
    scene.expected.is_refused = True


def poisoned_read(scene: Scene) -> None:
    """A block that nobody wrote stands for one that was computed."""
    plan, size = scene.plan, scene.spec.block_size
    known = [
        i
        for i, spec in enumerate(plan.sequences)
        if plan.starts[i] >= size and plan.num_samples[i]
        if spec.sequence_id not in scene.expected.codes
        # It writes what is spoiled: not into a block that is to be copied for somebody else.
        if scene.blocks.num_holders(scene.first_written(i)) == 1
    ]
    if known:
        i = scene.rng.choice(known)
        position = scene.rng.randrange(plan.starts[i] // size)
        _edit(plan.table_buffers, i, position, scene.blocks.any_free())
        scene.fail_chunk(i, ErrorCode.NON_FINITE)
        scene.expected.spoiled.add(plan.sequences[i].sequence_id)


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
