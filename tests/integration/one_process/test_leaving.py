"""Clients that leave in every phase of their request: one useful abort each, and nothing is left.

C numbers name acceptance cases.
"""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core.sequence import Sequence
from tests.support.builders import random_ids
from tests.support.one_process import OneProcess, until
from tests.support.raw_http_client import RawHttpClient
from tests.support.tiny_llama import VOCAB_SIZE

_LONG = 400


def _prompt(number: int, length: int = _LONG) -> list[int]:
    return random_ids(number, length, VOCAB_SIZE)


class _Phases:
    """Brings a request to a phase of its life and leaves the device held there."""

    def __init__(self, whole: OneProcess) -> None:
        self._whole = whole

    def newest(self) -> Sequence:
        return list(self._whole.core.state.sequences.values())[-1]

    async def step_until_computed(self, num_tokens: int) -> None:
        """Lets one step after another through until the newest sequence has so many in KV."""
        while self.newest().num_computed_tokens < num_tokens:
            steps = self._whole.core.counters.num_steps
            self._whole.runner.gate.let_through(1)
            await until(lambda steps=steps: self._whole.core.counters.num_steps > steps)

    async def in_its_prompt(self) -> None:
        await self.step_until_computed(128)
        assert self.newest().num_computed_tokens < _LONG

    async def decoding(self) -> None:
        await self.step_until_computed(_LONG + 3)


async def _post(
    whole: OneProcess, number: int, *, length: int = _LONG, **body: Any
) -> RawHttpClient:
    prompt = _prompt(number, length)
    return await RawHttpClient.post(
        whole.http_address, **{"prompt": prompt, "max_tokens": 400, "return_token_ids": True} | body
    )


_NUM_LEAVING = 17
"""Per phase, so some fifty in all."""


@pytest.mark.parametrize("phase", ["in_its_prompt", "decoding"])
async def test_c31_leaving_an_answer_that_is_not_streamed_aborts_it_within_two_steps(
    whole: OneProcess, phase: str
) -> None:
    phases = _Phases(whole)
    whole.runner.gate.clear()
    for number in range(_NUM_LEAVING):
        client = await _post(whole, number)
        await until(lambda: bool(whole.core.state.sequences))
        await getattr(phases, phase)()
        steps = whole.core.counters.num_steps
        await client.leave()
        await until(lambda count=number + 1: whole.num_useful_aborts == count, patience_s=1.0)
        whole.runner.gate.let_through(2)  # those in flight still name its blocks
        await until(lambda: whole.core.counters.num_referenced_blocks == 0, patience_s=1.0)
        assert whole.core.counters.num_steps <= steps + 2
    whole.runner.gate.set()
    await _check_after(whole, num_leaving=_NUM_LEAVING)


async def test_c31_leaving_the_queue_aborts_at_once(whole: OneProcess) -> None:
    running = [await _post(whole, number, length=8) for number in range(8)]
    await until(lambda: len(whole.core.state.running) == 8)
    whole.runner.gate.clear()
    for number in range(_NUM_LEAVING):
        client = await _post(whole, 100 + number)
        await until(lambda: whole.core.counters.num_waiting == 1)
        await client.leave()
        await until(lambda count=number + 1: whole.num_useful_aborts == count, patience_s=1.0)
        assert len(whole.core.state.sequences) == 8
    for client in running:
        await client.leave()
    await until(lambda: whole.num_useful_aborts == _NUM_LEAVING + 8)
    whole.runner.gate.set()
    await _check_after(whole, num_leaving=_NUM_LEAVING + 8)


async def _check_after(whole: OneProcess, *, num_leaving: int) -> None:
    """Nothing is left, and clients that stay get their answers without any abort."""
    assert len(whole.aborted_ids) == len(set(whole.aborted_ids)) == num_leaving
    assert whole.num_useful_aborts == num_leaving
    await whole.check_clean()
    for number in range(_NUM_LEAVING):
        ids = await whole.token_ids(prompt=_prompt(number, 20), max_tokens=3, ignore_eos=True)
        assert len(ids) == 3
    assert len(whole.aborted_ids) == num_leaving
    await whole.check_clean()


async def _read_events(whole: OneProcess, client: RawHttpClient, count: int) -> None:
    """Lets steps through until the client has read so many events."""
    for _ in range(count):
        whole.runner.gate.let_through(1)
        event = await client.reader.readuntil(b"data: ")
        assert b"[DONE]" not in event


async def test_c32_only_those_that_leave_are_aborted_and_each_once(whole: OneProcess) -> None:
    """Two hundred streams read to their end, fifty dropped after three events."""
    for first in range(0, 200, 8):
        clients = [
            await _post(whole, first + i, length=5, max_tokens=2, stream=True) for i in range(8)
        ]
        for client in clients:
            await client.reader.readuntil(b"data: [DONE]\n\n")
            await client.leave()
    assert whole.aborted_ids == []
    whole.runner.gate.clear()
    for number in range(50):
        client = await _post(whole, number, length=20, stream=True)
        await _read_events(whole, client, 3)
        await client.leave()
        await until(lambda count=number + 1: whole.num_useful_aborts == count)
        whole.runner.gate.let_through(2)
        await until(lambda: whole.core.num_in_flight == 0)
        whole.runner.gate.clear()
    whole.runner.gate.set()
    await whole.check_clean()
    assert len(whole.aborted_ids) == len(set(whole.aborted_ids)) == 50
    assert whole.num_useful_aborts == 50


async def test_c35_a_dropped_stream_costs_those_who_come_next_no_step(whole: OneProcess) -> None:
    warm = {"prompt": _prompt(7, 40), "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    expected = await whole.token_ids(**warm)
    plans_before = len(whole.runner.plans)
    await whole.token_ids(**warm)
    num_idle_plans = len(whole.runner.plans) - plans_before
    whole.runner.gate.clear()
    dropped = await _post(whole, 1, stream=True)
    whole.runner.gate.let_through(_LONG // 64)  # all of its prompt but the last chunk
    await _read_events(whole, dropped, 1)
    await dropped.leave()
    await until(lambda: whole.num_useful_aborts == 1, patience_s=1.0)
    num_sent = len(whole.runner.plans) + 1  # another may wait behind the one that is held
    whole.runner.gate.set()
    assert await whole.token_ids(**warm) == expected
    assert len(whole.runner.plans) <= num_sent + num_idle_plans
    await whole.check_clean()
