"""The real step loop over scripted executors and workers, all in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from common.plan import SamplingParams, TokenLogprobs
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.executor_client import ExecutorClient
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.messages import (
    Abort,
    Call,
    CallMethod,
    Command,
    Finish,
    Finished,
    ModelReady,
    Readiness,
    Refused,
    Reply,
    StepOutputs,
    Submit,
)
from scheduler_service.engine.outbox import Outbox
from scheduler_service.engine.server import WorkerLink
from tests.support.fake_executor_client import FakeExecutorClient

PATIENCE_S = 20.0
GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class Received:
    """All that a worker heard about one handle."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    num_cached_tokens: int | None = None
    finished: dict[int, Finished] = field(default_factory=dict)
    refused: Refused | None = None

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens.values()))


class RecordingWorker(WorkerLink):
    """A worker without a socket: what would be written is received at once."""

    def __init__(self, loop: EngineLoop, running: asyncio.Task[None], number: int = 1) -> None:
        self._running = running
        running.add_done_callback(lambda _: self._turned.set())
        self.number = number
        self.outbox = Outbox()
        self.model: ModelReady | None = None
        self.readiness: list[Readiness] = []
        self.outputs: list[StepOutputs] = []
        self.replies: dict[int, object] = {}
        self.received: dict[int, Received] = {}
        self._loop = loop
        self._turned = asyncio.Event()
        self._num_handles = 0
        self._num_calls = 0

    def flush(self) -> None:
        """Called once per turn of the loop."""
        for update in self.outbox.take():
            match update:
                case ModelReady():
                    self.model = update
                case Readiness():
                    self.readiness.append(update)
                case Reply(call_id, value):
                    self.replies[call_id] = value
                case StepOutputs():
                    self.outputs.append(update)
                    self._apply(update)
        self._turned.set()

    def _apply(self, outputs: StepOutputs) -> None:
        for admitted in outputs.admitted:
            self.received[admitted.handle].num_cached_tokens = admitted.num_cached_tokens
        tokens = array("i", outputs.tokens)
        for i, (handle, index) in enumerate(zip(outputs.handles, outputs.indexes, strict=True)):
            received = self.received[handle]
            assert index not in received.finished, "a token after the end"
            received.tokens.setdefault(index, []).append(tokens[i])
            if i in outputs.logprobs:
                received.logprobs.setdefault(index, []).append(outputs.logprobs[i])
        for refused in outputs.refused:
            self.received[refused.handle].refused = refused
        for finished in outputs.finished:
            received = self.received[finished.handle]
            assert finished.index not in received.finished, "ended twice"
            received.finished[finished.index] = finished

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for the end of the first turn after which the condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                if self._running.done():
                    self._running.result()
                self._turned.clear()
                await self._turned.wait()

    def send(self, *commands: Command) -> None:
        self._loop.receive(self, list(commands))

    def submit(
        self,
        prompt: Iterable[int],
        *,
        max_tokens: int | None = 8,
        request_id: str | None = None,
        params: SamplingParams = GREEDY,
        n: int = 1,
        timeout_s: float | None = None,
        stop_token_ids: tuple[int, ...] = (),
        prior_outputs: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> Received:
        self._num_handles += 1
        handle = self._num_handles
        received = self.received[handle] = Received()
        self.send(
            Submit(
                handle=handle,
                request_id=request_id or f"w{self.number}-{handle}",
                prompt_token_ids=array("i", prompt).tobytes(),
                params=params,
                n=n,
                max_tokens=max_tokens,
                stop_token_ids=stop_token_ids,
                timeout_s=timeout_s,
                prior_outputs=tuple(
                    (index, array("i", tokens).tobytes()) for index, tokens in prior_outputs
                ),
            )
        )
        return received

    def handle_of(self, received: Received) -> int:
        return next(handle for handle, other in self.received.items() if other is received)

    def abort(self, received: Received) -> None:
        self.send(Abort(f"w{self.number}-{self.handle_of(received)}"))

    def finish(self, received: Received, index: int, num_output_tokens: int) -> None:
        self.send(Finish(self.handle_of(received), index, num_output_tokens))

    async def call(self, method: CallMethod) -> object:
        self._num_calls += 1
        call_id = self._num_calls
        self.send(Call(call_id, method))
        await self.until(lambda: call_id in self.replies)
        return self.replies[call_id]

    async def abort_by_id(self, request_id: str) -> object:
        self._num_calls += 1
        call_id = self._num_calls
        self.send(Abort(request_id, call_id))
        await self.until(lambda: call_id in self.replies)
        return self.replies[call_id]

    async def ended(self, *received: Received, n: int = 1) -> None:
        """Waits until each has as many ends as choices."""
        await self.until(lambda: all(len(each.finished) == n for each in received))


CONFIG = SchedulerConfig(
    executors=("fake:1",),
    max_num_seqs=16,
    max_num_batched_tokens=64,
    check_invariants=True,
)


class Harness:
    def __init__(
        self,
        loop: EngineLoop,
        running: asyncio.Task[None],
        clients: Sequence[ExecutorClient],
    ) -> None:
        self.loop = loop
        self.clients = list(clients)
        self._running = running
        self.worker = self.join(1)

    @property
    def client(self) -> FakeExecutorClient:
        """The scripted one, where there is one."""
        client = self.clients[0]
        assert isinstance(client, FakeExecutorClient)
        return client

    @property
    def core(self):  # type: ignore[no-untyped-def]
        return self.loop.lanes[0].core.scheduler

    def join(self, number: int) -> RecordingWorker:
        worker = RecordingWorker(self.loop, self._running, number)
        self.loop.worker_joined(worker)
        return worker


@contextlib.asynccontextmanager
async def engine(
    *clients: ExecutorClient, wait_ready: float | None = 20.0, **flags: object
) -> AsyncIterator[Harness]:
    """A running loop. `flags` change CONFIG."""
    clients = clients or (FakeExecutorClient(),)
    config = dataclasses.replace(CONFIG, **flags)  # type: ignore[arg-type]
    loop = EngineLoop(config, clients)
    running = asyncio.create_task(loop.run())
    try:
        harness = Harness(loop, running, clients)
        if wait_ready is not None:
            ready = asyncio.create_task(loop.ready.wait())
            await asyncio.wait(
                (running, ready), timeout=wait_ready, return_when=asyncio.FIRST_COMPLETED
            )
            assert ready.done(), running
        yield harness
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
