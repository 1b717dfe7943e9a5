"""What is logged of a plan that was found invalid."""

from __future__ import annotations

from common.plan import SequenceId
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.engine.plan_dump import dump
from tests.support.builders import make_limits, make_request, random_ids


def test_only_the_named_sequences_are_described() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(make_request("a", random_ids(1, 20)))
    scheduler.add(make_request("b", random_ids(2, 7)))
    plan = scheduler.schedule()
    assert plan is not None
    named = plan.sequences[1].sequence_id
    head, *lines = dump(plan, {named})
    assert head.startswith(f"step {plan.step_id}: 2 chunks")
    (line,) = lines
    assert line.startswith(f"sequence {named}: [0, 7) of 7 known tokens")


def test_tokens_are_not_spelled_out() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(make_request("a", [111, 222, 333]))
    plan = scheduler.schedule()
    assert plan is not None
    text = "\n".join(dump(plan, {SequenceId(plan.sequences[0].sequence_id)}))
    assert "111 to 333" in text
    assert "222" not in text
