from __future__ import annotations

import pytest

from scheduler_service.config import SchedulerConfig
from scheduler_service.core.policy import POLICIES, Fcfs
from scheduler_service.engine.served_model import ServedModel
from tests.support.fake_executor_client import FakeExecutorClient


async def test_the_core_follows_the_policy_that_the_flag_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Other(Fcfs):
        """Not the default one."""

    monkeypatch.setitem(POLICIES, "other", Other)
    info = await FakeExecutorClient().hello(0)
    for name, expected in (("fcfs", Fcfs), ("other", Other)):
        config = SchedulerConfig(executors=("fake:1",), scheduling_policy=name)
        assert type(ServedModel(config).new_core(info).state.policy) is expected
