"""Limits on time, memory and output; the process is there again after each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from common.errors import InvalidRequestError
from scheduler_service.api import template_process
from scheduler_service.api.template_process import TemplateProcess

CHAT = [{"role": "user", "content": "hé 🗼"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BY_ROLE = f"{{% if messages[0].role == 'bad' %}}{LOOP}{{% else %}}fine{{% endif %}}"


class Started:
    """Starts template processes and ends them with the test."""

    def __init__(self) -> None:
        self.processes: list[TemplateProcess] = []

    async def __call__(self, source: str) -> TemplateProcess:
        process = await TemplateProcess.start(source, {"bos_token": "<s>"})
        self.processes.append(process)
        return process


@pytest.fixture
async def start() -> AsyncIterator[Started]:
    started = Started()
    yield started
    for process in started.processes:
        await process.close()


async def test_renders_like_the_template_itself(start: Started) -> None:
    process = await start("{{ bos_token }}{{ messages[0].content }}{{ add_generation_prompt }}")
    assert await process.render(CHAT, add_generation_prompt=True) == "<s>hé 🗼True"
    assert await process.render(CHAT, add_generation_prompt=False) == "<s>hé 🗼False"


async def test_an_endless_loop_ends_after_a_second_and_the_next_chat_is_rendered(
    start: Started,
) -> None:
    process = await start(BY_ROLE)
    began = time.monotonic()
    with pytest.raises(InvalidRequestError, match="took more than 1 s") as raised:
        await process.render([{"role": "bad", "content": ""}], add_generation_prompt=True)
    assert raised.value.field == "messages"
    assert time.monotonic() - began < 5
    assert await process.render(CHAT, add_generation_prompt=True) == "fine"


async def test_the_event_loop_runs_on_while_a_template_does_not(start: Started) -> None:
    process = await start(BY_ROLE)
    rendering = asyncio.create_task(
        process.render([{"role": "bad", "content": ""}], add_generation_prompt=True)
    )
    turns = 0
    while not rendering.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert isinstance(rendering.exception(), InvalidRequestError)
    assert turns > 20


@pytest.mark.parametrize("source", ["{{ 'a' * 10**10 }}", "{{ 'a'.ljust(9 * 10**9) }}"])
async def test_a_gigabyte_is_refused(start: Started, source: str) -> None:
    process = await start(source)
    with pytest.raises(InvalidRequestError, match="too much memory"):
        await process.render(CHAT, add_generation_prompt=True)


async def test_too_long_an_output_is_refused(start: Started) -> None:
    process = await start(f"{{{{ 'a' * {template_process.MAX_OUTPUT_CHARS + 1} }}}}")
    with pytest.raises(InvalidRequestError, match="wrote more than"):
        await process.render(CHAT, add_generation_prompt=True)


async def test_a_broken_template_fails_each_chat_and_nothing_else(start: Started) -> None:
    process = await start("{% if %}")
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="broken"):
            await process.render(CHAT, add_generation_prompt=True)


async def test_a_client_that_leaves_does_not_shift_the_answers_of_others(start: Started) -> None:
    process = await start("{{ messages[0].content }}")
    leaving = asyncio.create_task(
        process.render([{"role": "user", "content": "first"}], add_generation_prompt=True)
    )
    await asyncio.sleep(0)
    leaving.cancel()
    second = await process.render(
        [{"role": "user", "content": "second"}], add_generation_prompt=True
    )
    assert second == "second"


async def test_many_at_once_each_get_their_own(start: Started) -> None:
    process = await start("{{ messages[0].content }}")
    chats = [[{"role": "user", "content": str(i)}] for i in range(50)]
    answers = await asyncio.gather(
        *(process.render(chat, add_generation_prompt=True) for chat in chats)
    )
    assert answers == [str(i) for i in range(50)]
