"""The same world under Hypothesis, which shrinks a failure to a short list of events."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from common.plan import SequenceId
from scheduler_service.core.limits import SchedulerLimits
from tests.simulation.ledger import Choice
from tests.simulation.traffic import EOS, ROOTS, STOP, VOCAB_SIZE
from tests.simulation.world import ROOT_SHIFT, World
from tests.support.builders import make_limits, make_request
from tests.support.shadow_model import ShadowModel

LIMITS = st.builds(
    make_limits,
    block_size=st.sampled_from((1, 2, 4)),
    num_blocks=st.integers(4, 24),
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.integers(1, 12),
    max_model_len=st.sampled_from((12, 40)),
    depth=st.sampled_from((1, 2)),
    enable_prefix_caching=st.booleans(),
    max_num_waiting=st.sampled_from((3, 100)),
    vocab_size=st.just(VOCAB_SIZE),
)
# Few distinct tokens, so that prompts share beginnings.
PROMPTS = st.lists(st.sampled_from((10, 20)), min_size=1, max_size=14)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(limits=LIMITS, eos_period=st.sampled_from((0, 5)))
    def start(self, limits: SchedulerLimits, eos_period: int) -> None:
        model = ShadowModel(vocab_size=VOCAB_SIZE, eos_token_id=EOS, eos_period=eos_period)
        self.world = World(limits, model)
        self.count = 0
        self.now = 0.0

    def _pick(self, number: int) -> Choice | None:
        live = self.world.ledger.live()
        return live[number % len(live)] if live else None

    def _sequence(self, number: int) -> tuple[Choice, SequenceId] | None:
        choice = self._pick(number)
        if choice is None:
            return None
        sequence_id = self.world.scheduler.sequence_id_of(choice.key)
        return None if sequence_id is None else (choice, sequence_id)

    @rule(
        prompt=PROMPTS,
        n=st.sampled_from((1, 1, 2, 3)),
        max_tokens=st.sampled_from((None, 1, 3, 10)),
        temperature=st.sampled_from((0.0, 1.0)),
        root=st.sampled_from((0, 0, 1, 2)),
        lifetime=st.sampled_from((None, None, 3)),
        stops=st.booleans(),
    )
    def add(
        self,
        prompt: list[int],
        n: int,
        max_tokens: int | None,
        temperature: float,
        root: int,
        lifetime: int | None,
        stops: bool,  # noqa: FBT001 -- drawn by Hypothesis
    ) -> None:
        self.count += 1
        self.world.add(
            make_request(
                f"r{self.count}",
                prompt,
                n=n,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=root << ROOT_SHIFT,
                eos_token_ids=(EOS,),
                stop_token_ids=(STOP, 7) if stops else (),
                deadline=None if lifetime is None else self.now + lifetime,
                cache_root=ROOTS[root],
            )
        )

    @rule()
    def plan(self) -> None:
        self.world.plan()

    @rule()
    def execute(self) -> None:
        self.world.execute()

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            while self.world.plan():
                pass
            self.world.deliver()

    @rule()
    def deliver(self) -> None:
        self.world.deliver()

    @rule(number=st.integers(0, 9))
    def abort(self, number: int) -> None:
        choice = self._pick(number)
        if choice is not None:
            self.world.abort(choice.request.request_id)

    @rule(number=st.integers(0, 9), back=st.integers(0, 3))
    def finish(self, number: int, back: int) -> None:
        found = self._sequence(number)
        if found is not None and found[0].tokens:
            self.world.finish(found[1], max(1, len(found[0].tokens) - back))

    @rule(number=st.integers(0, 9))
    def preempt(self, number: int) -> None:
        found = self._sequence(number)
        if found is not None:
            self.world.preempt(found[1])

    @rule(number=st.integers(0, 9))
    def fail(self, number: int) -> None:
        found = self._sequence(number)
        if found is not None:
            self.world.fail_next(found[1])

    @rule(passed=st.integers(0, 4))
    def expire(self, passed: int) -> None:
        self.now += passed
        self.world.expire(self.now)

    @rule(num_run=st.integers(0, 2))
    def break_stream(self, num_run: int) -> None:
        self.world.break_stream(num_run)

    @rule()
    def restart_executor(self) -> None:
        self.world.restart_executor()

    @rule(limit=st.integers(1, 4))
    def take_waiting(self, limit: int) -> None:
        self.world.take_waiting(limit)

    @precondition(lambda self: self.world.moving)
    @rule()
    def give_back(self) -> None:
        self.world.give_back()

    @rule(number=st.integers(0, 3))
    def repeat_result(self, number: int) -> None:
        self.world.repeat_result(number)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
