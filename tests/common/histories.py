"""Random histories of one step stream, to test the codec: who lives, grows, forks and leaves."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields

from common.plan import SamplingParams, SequenceId, SequenceSpec, StepPlan

VOCAB_SIZE = 1000
DEFAULT_PARAMS = SamplingParams()


@dataclass(eq=False)
class Live:
    spec: SequenceSpec
    tokens: array[int]
    blocks: array[int] = field(default_factory=lambda: array("i"))
    in_plan: bool = False


class History:
    """Makes plan after plan as a scheduler would, with sequences that share nothing but luck."""

    def __init__(self, seed: int, *, max_live: int) -> None:
        self.random = random.Random(seed)
        self.max_live = max_live
        self.live: list[Live] = []
        self.parked: list[Live] = []
        self.released: list[SequenceId] = []
        self.next_id = 1
        self.next_step = 1

    def add(self, *, params: SamplingParams = DEFAULT_PARAMS, num_tokens: int = 5) -> Live:
        spec = SequenceSpec(
            sequence_id=SequenceId(self.next_id),
            index=self.random.randrange(3),
            num_prompt_tokens=num_tokens,
            params=params,
        )
        self.next_id += 1
        tokens = array("i", (self.random.randrange(VOCAB_SIZE) for _ in range(num_tokens)))
        live = Live(spec, tokens)
        self.live.append(live)
        return live

    def release(self, live: Live) -> None:
        self.live.remove(live)
        self.released.append(live.spec.sequence_id)

    def preempt(self, live: Live) -> None:
        """Its row goes now; the same sequence comes back with a table of its own."""
        self.release(live)
        self.parked.append(Live(live.spec, live.tokens))

    def plan(self) -> StepPlan:
        """Random decodes and chunks over some of the living, in random order."""
        rng = self.random
        chosen = rng.sample(self.live, rng.randint(0, len(self.live)))
        cut = rng.randint(0, len(chosen))
        plan = StepPlan(step_id=self.next_step, num_decodes=cut, released=self.released)
        self.next_step += 1
        self.released = [SequenceId(999_999)] if rng.random() < 0.1 else []
        for live in chosen[:cut]:
            self._grow(live, rng.choice((0, 1, 1, 1, 1, 2)))
            add_chunk(plan, live, start=len(live.tokens) - 1, length=1, samples=[live.spec])
        for live in chosen[cut:]:
            self._grow(live, rng.choice((0, 0, 0, 3, 40)))
            samples = []
            for _ in range(rng.choice((0, 0, 1, 3))):
                fresh = len(self.live) < self.max_live and rng.random() < 0.5
                samples.append((self.add() if fresh else rng.choice(self.live)).spec)
            start = rng.randrange(1000)
            add_chunk(plan, live, start=start, length=rng.randint(1, 99), samples=samples)
        for _ in range(rng.choice((0, 0, 2))):
            plan.copy_sources.append(rng.randrange(1000))
            plan.copy_destinations.append(rng.randrange(1000))
        if rng.random() < 0.2:
            plan.masked = frozenset(spec.sequence_id for spec in plan.sampled[::2])
        return plan

    def churn(self) -> None:
        """Some arrive, some leave, some are preempted or come back."""
        rng = self.random
        while len(self.live) < self.max_live and rng.random() < 0.5:
            if self.parked and rng.random() < 0.5:
                self.live.append(self.parked.pop())
            else:
                self.add(params=random_params(rng), num_tokens=rng.choice((1, 5, 200)))
        for live in list(self.live):
            chance = rng.random()
            if chance < 0.1:
                self.release(live)
            elif chance < 0.2:
                self.preempt(live)

    def _grow(self, live: Live, num_tokens: int) -> None:
        live.tokens.extend(self.random.randrange(VOCAB_SIZE) for _ in range(num_tokens))
        while len(live.blocks) * 16 <= len(live.tokens):
            live.blocks.append(self.random.randrange(10_000))


def add_chunk(
    plan: StepPlan, live: Live, *, start: int, length: int, samples: list[SequenceSpec]
) -> None:
    plan.sequences.append(live.spec)
    plan.starts.append(start)
    plan.lengths.append(length)
    plan.token_buffers.append(live.tokens)
    plan.token_lengths.append(len(live.tokens))
    plan.table_buffers.append(live.blocks)
    plan.table_lengths.append(len(live.blocks))
    plan.num_samples.append(len(samples))
    plan.sampled.extend(samples)


def decode_plan(history: History, batch: list[Live]) -> StepPlan:
    """A steady decode step: each of the batch has one token more."""
    plan = StepPlan(step_id=history.next_step, num_decodes=len(batch))
    history.next_step += 1
    for live in batch:
        history._grow(live, 1)
        add_chunk(plan, live, start=len(live.tokens) - 1, length=1, samples=[live.spec])
    return plan


def random_params(rng: random.Random) -> SamplingParams:
    """Values that float32 holds exactly: the wire carries no more."""
    if rng.random() < 0.5:
        return DEFAULT_PARAMS
    return SamplingParams(
        temperature=rng.choice((0.0, 0.5, 2.0)),
        top_k=rng.choice((0, 40)),
        top_p=rng.choice((1.0, 0.75)),
        min_p=rng.choice((0.0, 0.125)),
        repetition_penalty=rng.choice((1.0, 1.5)),
        presence_penalty=rng.choice((0.0, -0.5)),
        frequency_penalty=rng.choice((0.0, 0.25)),
        seed=rng.choice((0, 2**64 - 1, rng.getrandbits(64))),
        logit_bias=rng.choice(((), ((5, -100.0), (7, 1.5)))),
        min_tokens=rng.choice((0, 3)),
        stop_token_ids=rng.choice(((), (2,), (0, VOCAB_SIZE - 1))),
        num_logprobs=rng.choice((None, 0, 5)),
        num_prompt_logprobs=rng.choice((None, 0, 2)),
    )


def spec_values(spec: SequenceSpec) -> tuple[object, ...]:
    """Specs compare by identity; this compares them by what they say."""
    return tuple(getattr(spec, item.name) for item in dataclass_fields(spec))


def meaning(plan: StepPlan) -> dict[str, object]:
    """All that a plan says, materialised, so that two plans can be compared."""
    return {
        "step_id": plan.step_id,
        "num_decodes": plan.num_decodes,
        "chunks": [
            (
                spec_values(chunk.spec),
                chunk.start,
                chunk.length,
                chunk.tokens,
                chunk.block_ids,
                [spec_values(spec) for spec in chunk.samples],
            )
            for chunk in plan.chunks()
        ],
        "sampled": [spec_values(spec) for spec in plan.sampled],
        "copies": (plan.copy_sources.tolist(), plan.copy_destinations.tolist()),
        "masked": plan.masked,
    }
