"""A stack's command lines with the fake services in place of the real ones."""

from __future__ import annotations

from octavo.stack.command_lines import CommandLines
from octavo.stack.config import StackConfig


def fake_command_lines(stack: StackConfig) -> CommandLines:
    return CommandLines(
        stack,
        executor_module="tests.support.fake_service_executor",
        scheduler_module="tests.support.fake_service_scheduler",
    )
