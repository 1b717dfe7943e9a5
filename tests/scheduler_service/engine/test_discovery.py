"""Lanes that come and go with a name's addresses, over the real loop and scripted executors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
from collections.abc import AsyncIterator

import pytest

from scheduler_service.engine import discovery
from scheduler_service.engine.discovery import Discovery, look_up
from scheduler_service.engine.executor_client import ExecutorClient
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.messages import ServerInfo
from tests.support.builders import random_ids
from tests.support.engine_harness import CONFIG, GREEDY, Harness
from tests.support.fake_executor_client import FakeExecutorClient
from tests.support.shadow_model import ShadowModel, expected_output

NAME = "executor:50051"
MODEL = ShadowModel(vocab_size=1000)


class Fleet:
    """Executors at addresses, what DNS says about them, and the loop that looks for them."""

    def __init__(self, harness: Harness, *, forget_after_s: float) -> None:
        self.harness = harness
        self.answers: dict[str, frozenset[str] | OSError] = {NAME: frozenset()}
        self.executors: dict[str, FakeExecutorClient] = {}
        self.closed: list[str] = []
        self.discovery = Discovery(
            (NAME,), harness.loop, self._connect, self._resolve, forget_after_s=forget_after_s
        )

    def _connect(self, address: str) -> ExecutorClient:
        if address not in self.executors:
            self.executors[address] = FakeExecutorClient(address=address, is_down=True)
        client = self.executors[address]

        async def close() -> None:
            self.closed.append(address)

        client.close = close  # type: ignore[method-assign]
        return client

    async def _resolve(self, name: str) -> frozenset[str]:
        answer = self.answers[name]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def start(self, address: str, **flags: int) -> FakeExecutorClient:
        client = FakeExecutorClient(address=address, **flags)  # type: ignore[arg-type]
        self.executors[address] = client
        return client

    async def says(self, *addresses: str) -> None:
        """One round of look-ups, in which DNS has these."""
        self.answers[NAME] = frozenset(addresses)
        await self.discovery.refresh()

    @property
    def lanes(self) -> list[str]:
        return sorted(lane.address for lane in self.harness.loop.lanes)

    async def reached(self, *addresses: str) -> None:
        lanes = self.harness.loop.lanes
        await self.harness.worker.until(
            lambda: set(addresses) <= {each.address for each in lanes if each.accepts_requests}
        )

    async def lost(self, address: str) -> None:
        """Ends the executor there, and waits until its lane knows."""
        client = self.executors[address]
        client.is_down = True
        client.break_stream()
        lane = next(lane for lane in self.harness.loop.lanes if lane.address == address)
        await self.harness.worker.until(lambda: not lane.accepts_requests)


@contextlib.asynccontextmanager
async def fleet(
    *listed: FakeExecutorClient, forget_after_s: float = 0.0, **flags: object
) -> AsyncIterator[Fleet]:
    loop = EngineLoop(dataclasses.replace(CONFIG, **flags), listed)  # type: ignore[arg-type]
    running = asyncio.create_task(loop.run())
    try:
        yield Fleet(Harness(loop, running, listed), forget_after_s=forget_after_s)
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_address_that_appears_serves_without_restart() -> None:
    prompt = random_ids(1, 10)
    async with fleet() as here:
        refused = here.harness.worker.submit(prompt)
        await here.harness.worker.until(lambda: refused.refused is not None)
        assert refused.refused is not None and refused.refused.kind == "unavailable"
        here.start("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        received = here.harness.worker.submit(prompt)
        await here.harness.worker.ended(received)
        assert received.tokens == {0: expected_output(MODEL, prompt, 8, GREEDY)}
        assert here.harness.worker.readiness[-1].ready


async def test_every_address_of_the_name_gets_work() -> None:
    addresses = ["10.0.0.1:50051", "10.0.0.2:50051", "10.0.0.3:50051"]
    async with fleet() as here:
        clients = [here.start(address) for address in addresses]
        await here.says(*addresses)
        await here.reached(*addresses)
        received = [here.harness.worker.submit(random_ids(i, 9)) for i in range(9)]
        await here.harness.worker.ended(*received)
        assert all(client.plans for client in clients)
        info = await here.harness.worker.call("server_info")
        assert isinstance(info, list) and ServerInfo(*info).num_executors == 3


async def test_an_executor_may_start_long_after_its_name_resolves() -> None:
    async with fleet() as here:
        client = here.start("10.0.0.1:50051")
        client.is_down = True
        await here.says("10.0.0.1:50051")
        await client.until(lambda: len(client.hellos) > 2)
        await here.discovery.refresh()
        assert here.lanes == ["10.0.0.1:50051"], "it is named, however unreachable"
        client.is_down = False
        await here.reached("10.0.0.1:50051")


async def test_work_of_an_executor_that_is_gone_ends_right_elsewhere() -> None:
    prompt = random_ids(1, 10)
    async with fleet() as here:
        here.start("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        received = here.harness.worker.submit(prompt, max_tokens=400)
        await here.harness.worker.until(lambda: received.num_tokens > 20)
        here.executors["10.0.0.1:50051"].hold()
        here.start("10.0.0.2:50051")
        await here.says("10.0.0.1:50051", "10.0.0.2:50051")
        await here.reached("10.0.0.2:50051")
        await here.lost("10.0.0.1:50051")
        await here.says("10.0.0.2:50051")
        await here.harness.worker.ended(received)
        assert received.tokens == {0: expected_output(MODEL, prompt, 400, GREEDY)}
        assert here.executors["10.0.0.2:50051"].plans
        await here.says("10.0.0.2:50051")
        assert here.lanes == ["10.0.0.2:50051"]
        assert here.closed == ["10.0.0.1:50051"]


async def test_an_executor_that_works_stays_though_dns_forgot_it() -> None:
    async with fleet() as here:
        here.start("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        await here.says("10.0.0.2:50051")
        await here.says("10.0.0.2:50051")
        assert here.lanes == ["10.0.0.1:50051", "10.0.0.2:50051"]
        received = here.harness.worker.submit(random_ids(1, 10))
        await here.harness.worker.ended(received)


@pytest.mark.parametrize(
    "answer",
    [frozenset[str](), socket.gaierror(socket.EAI_AGAIN, "try again")],
    ids=["empty", "failed"],
)
async def test_no_answer_changes_nothing(answer: frozenset[str] | OSError) -> None:
    async with fleet() as here:
        here.start("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        await here.lost("10.0.0.1:50051")
        here.answers[NAME] = answer
        await here.discovery.refresh()
        await here.discovery.refresh()
        assert here.lanes == ["10.0.0.1:50051"]


async def test_a_short_absence_is_forgiven() -> None:
    async with fleet(forget_after_s=3600.0) as here:
        here.start("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        await here.lost("10.0.0.1:50051")
        await here.says("10.0.0.2:50051")
        await here.says("10.0.0.2:50051")
        assert here.lanes == ["10.0.0.1:50051", "10.0.0.2:50051"]


async def test_work_that_no_other_executor_can_hold_waits_for_one_that_can() -> None:
    prompt = random_ids(1, 100)
    async with fleet(max_num_batched_tokens=256) as here:
        here.start("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        here.executors["10.0.0.1:50051"].hold()
        received = here.harness.worker.submit(prompt, max_tokens=50)
        small = here.start("10.0.0.2:50051", num_blocks=10)
        await here.says("10.0.0.1:50051", "10.0.0.2:50051")
        await here.reached("10.0.0.2:50051")
        await here.lost("10.0.0.1:50051")
        await here.says("10.0.0.2:50051")
        await here.says("10.0.0.2:50051")
        assert here.lanes == ["10.0.0.1:50051", "10.0.0.2:50051"], "it still has the request"
        here.start("10.0.0.3:50051")
        await here.says("10.0.0.2:50051", "10.0.0.3:50051")
        await here.reached("10.0.0.3:50051")
        await here.discovery.refresh()
        await here.harness.worker.ended(received)
        assert received.tokens == {0: expected_output(MODEL, prompt, 50, GREEDY)}
        assert not small.plans
        await here.discovery.refresh()
        assert here.lanes == ["10.0.0.2:50051", "10.0.0.3:50051"]


async def test_an_address_that_is_reused_is_one_lane() -> None:
    async with fleet(forget_after_s=3600.0) as here:
        client = here.start("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        await here.lost("10.0.0.1:50051")
        client.is_down = False
        client.restart()
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        received = here.harness.worker.submit(random_ids(1, 10))
        await here.harness.worker.ended(received)
        assert here.lanes == ["10.0.0.1:50051"]


async def test_listed_executors_are_never_dropped_or_doubled() -> None:
    listed = FakeExecutorClient(address="10.0.0.9:50051", is_down=True)
    async with fleet(listed) as here:
        await here.says("10.0.0.9:50051")
        assert here.lanes == ["10.0.0.9:50051"]
        await here.says("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        assert here.lanes == ["10.0.0.1:50051", "10.0.0.9:50051"]


async def test_sums_over_executors_do_not_fall_when_one_is_dropped() -> None:
    def computed(page: object) -> float:
        lines = str(page).splitlines()
        values = [line.split()[1] for line in lines if line.startswith("octavo_computed_tokens_t")]
        return float(values[0])

    async with fleet() as here:
        here.start("10.0.0.1:50051")
        await here.says("10.0.0.1:50051")
        await here.reached("10.0.0.1:50051")
        received = here.harness.worker.submit(random_ids(1, 30))
        await here.harness.worker.ended(received)
        before = computed(await here.harness.worker.call("metrics"))
        assert before >= 30
        await here.lost("10.0.0.1:50051")
        await here.says("10.0.0.2:50051")
        assert here.lanes == ["10.0.0.2:50051"]
        page = await here.harness.worker.call("metrics")
        assert computed(page) == before
        assert 'executor="10.0.0.1:50051"' not in str(page)


async def test_a_look_up_that_fails_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet() as here:
        here.answers[NAME] = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        for _ in range(3):
            await here.discovery.refresh()
    told = [record.getMessage() for record in caplog.records if NAME in record.getMessage()]
    assert told == [f"the name {NAME} cannot be looked up: Name or service not known"]


async def test_the_systems_resolver_answers_with_addresses() -> None:
    assert await look_up("localhost:50051") in ({"127.0.0.1:50051"}, {"[::1]:50051"})
    with pytest.raises(OSError):
        await look_up("no-such-host.invalid:50051")


async def test_an_executor_with_both_families_is_one_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))
        six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", port, 0, 0))
        return [six, four] if host == "both" else [six]

    monkeypatch.setattr(discovery.socket, "getaddrinfo", both)
    assert await look_up("both:50051") == {"10.0.0.1:50051"}
    assert await look_up("six:50051") == {"[fd00::1]:50051"}


async def test_a_resolver_that_hangs_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, told = threading.Event(), threading.Event()

    def hang(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.set()
        told.wait()
        return []

    monkeypatch.setattr(discovery.socket, "getaddrinfo", hang)
    try:
        looking = asyncio.create_task(look_up("slow:50051"))
        await asyncio.get_running_loop().run_in_executor(None, asked.wait)
        assert not looking.done(), "and the event loop turns meanwhile"
        looking.cancel()
        await asyncio.wait((looking,))
        assert looking.cancelled()
    finally:
        told.set()
