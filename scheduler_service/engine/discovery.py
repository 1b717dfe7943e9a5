"""Executors that DNS knows by a common name: each of its addresses becomes a lane.

    an address appears           a lane is added, without restart
    it is gone from the answers  DNS is hearsay about an executor: its lane stays while it works.
                                 Once it failed for a while as well, the lane is dropped; by then
                                 its work has moved, as that of any lost executor
    no answer, or an empty one   tells nothing: a resolver that lost its zone looks the same

No look-up runs on the step loop's thread: `getaddrinfo` may block for many seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from common.grpc_server import join_address
from scheduler_service.engine.executor_client import ExecutorClient
from scheduler_service.engine.lane import ExecutorLane
from scheduler_service.engine.loop import EngineLoop

log = logging.getLogger(__name__)

LOOK_UP_EVERY_S = 2.0
FORGET_AFTER_S = 10.0
"""An executor that restarts is back at another address, or at this one, before that."""

Resolve = Callable[[str], Awaitable[frozenset[str]]]
"""From a name with its port to addresses with that port. OSError if there is no answer."""


class _Found(NamedTuple):
    lane: ExecutorLane
    client: ExecutorClient


class Discovery:
    """Keeps the loop's lanes equal to what its names resolve to. Listed lanes are left alone."""

    def __init__(
        self,
        names: Sequence[str],
        loop: EngineLoop,
        connect: Callable[[str], ExecutorClient],
        resolve: Resolve | None = None,
        *,
        forget_after_s: float = FORGET_AFTER_S,
    ) -> None:
        self._loop = loop
        self._connect = connect
        self._resolve = resolve or look_up
        self._forget_after_s = forget_after_s
        self._answers: dict[str, frozenset[str]] = dict.fromkeys(names, frozenset())
        """The last one of each name."""
        self._listed = frozenset(lane.address for lane in loop.lanes)
        self._found: dict[str, _Found] = {}
        self._missing_since: dict[str, float] = {}
        """Found once, and now neither named nor reached."""
        self._complaints: dict[str, str] = {}

    async def run(self) -> None:
        """Looks every name up again and again. Returns only if there are none."""
        while self._answers:
            await self.refresh()
            await asyncio.sleep(LOOK_UP_EVERY_S)

    async def refresh(self) -> None:
        """One round."""
        await asyncio.gather(*map(self._ask, self._answers))
        named = frozenset[str]().union(*self._answers.values())
        for address in sorted(named - self._listed - self._found.keys()):
            log.info("executor found", extra={"executor": address})
            client = self._connect(address)
            self._found[address] = _Found(self._loop.add_lane(client), client)
        for address in list(self._found):
            await self._drop_if_gone(address, named)

    async def close(self) -> None:
        """Closes the clients. Only once the loop has ended."""
        for found in self._found.values():
            await found.client.close()

    async def _ask(self, name: str) -> None:
        try:
            answer = await self._resolve(name)
            complaint = "" if answer else f"no executor is found under the name {name}"
        except OSError as error:
            answer = frozenset()
            complaint = f"the name {name} cannot be looked up: {error.strerror or error}"
        if answer:
            self._answers[name] = answer
        if complaint != self._complaints.get(name, ""):
            self._complaints[name] = complaint
            if complaint:
                log.warning("%s", complaint)

    async def _drop_if_gone(self, address: str, named: frozenset[str]) -> None:
        lane, client = self._found[address]
        if address in named or lane.accepts_requests:
            self._missing_since.pop(address, None)
            return
        since = self._missing_since.setdefault(address, self._loop.now())
        if self._loop.now() - since >= self._forget_after_s and self._loop.drop_lane(lane):
            log.info("executor forgotten", extra={"executor": address})
            del self._found[address], self._missing_since[address]
            await client.close()


async def look_up(name: str) -> frozenset[str]:
    """Every address of a host:port, as the system's resolver knows it.

    On a thread of its own that nobody joins: one from a pool would hold up the end of the process
    for as long as a name server does not answer.
    """
    host, _, port = name.rpartition(":")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[frozenset[str]] = loop.create_future()

    def work() -> None:
        outcome: frozenset[str] | OSError
        try:
            outcome = _addresses(host, int(port))
        except OSError as error:
            outcome = error
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody asks any more
            loop.call_soon_threadsafe(deliver, outcome)

    def deliver(outcome: frozenset[str] | OSError) -> None:
        if answer.done():
            return  # cancelled meanwhile
        if isinstance(outcome, OSError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    threading.Thread(target=work, name=f"look up {name}", daemon=True).start()
    return await answer


def _addresses(host: str, port: int) -> frozenset[str]:
    """Those of IPv4, or of IPv6 if there are no others: an executor that has both is one."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families = {entry[0] for entry in entries}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return frozenset(
        join_address(str(entry[4][0]), port) for entry in entries if entry[0] == family
    )
