"""An executor in this process, behind the loop's own client interface, that does as it is told.

Steps run on the shadow-KV executor, so a wrong table or a stale read fails the test. Without orders
every plan is executed at once; `hold` makes results wait for `release`, which is the place between
"plan sent" and "result applied".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from common.errors import ExecutorLostError, OwnershipError, ResyncError
from common.plan import StepPlan, StepResult
from scheduler_service.engine.executor_client import ExecutorInfo, StepStream
from tests.support.shadow_executor import ShadowExecutor

FILES = {"config.json": b"{}", "tokenizer.json": b"{}"}


@dataclass
class FakeExecutorClient:
    """One address. `restart` puts another process behind it, `is_down` none."""

    num_blocks: int = 256
    block_size: int = 4
    vocab_size: int = 1000
    max_rows: int = 64
    max_model_len: int = 4096
    max_num_batched_tokens: int = 8192
    fingerprint: str = "f" * 64
    address: str = "fake:1"
    is_down: bool = False
    owner_error: str = ""
    incarnation: int = 1
    epoch: int = 0
    hellos: list[int] = field(default_factory=list)
    """Epochs asked for."""
    plans: list[StepPlan] = field(default_factory=list)
    """Everything ever sent."""
    streams: list[FakeStream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._asked = asyncio.Event()
        self.is_held = False
        self.num_released = 0
        self._start_process()

    def _start_process(self) -> None:
        self.shadow = ShadowExecutor(self.num_blocks, self.block_size, self.vocab_size)

    # Orders

    def hold(self) -> None:
        """From now on plans are executed only by `release`."""
        self.is_held = True
        self.num_released = 0

    def release(self, count: int = 1) -> None:
        """Executes the next `count` plans as they come."""
        self.num_released += count
        self.stream.news.set()

    def resume(self) -> None:
        self.is_held = False
        self.stream.news.set()

    def break_stream(self, error: Exception | None = None) -> None:
        """Steps in flight are void."""
        self.stream.fail(error or ExecutorLostError("scripted break"))

    def restart(self) -> None:
        """The process dies and another one, with an empty pool, is at its address at once."""
        self.incarnation += 1
        self.epoch = 0
        self._start_process()
        self.break_stream()

    def take_over(self) -> None:
        """Another scheduler claims the executor and uses its pool."""
        self.epoch += 1
        for block_id in range(self.num_blocks):
            self.shadow.poison_block(block_id)
        self.break_stream(ResyncError("epoch"))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for the first hello after which the condition holds."""
        async with asyncio.timeout(10.0):
            while not condition():
                self._asked.clear()
                await self._asked.wait()

    @property
    def stream(self) -> FakeStream:
        return self.streams[-1]

    # ExecutorClient

    async def hello(self, epoch: int) -> ExecutorInfo:
        self.hellos.append(epoch)
        self._asked.set()
        await asyncio.sleep(0)
        if self.is_down:
            raise ExecutorLostError("scripted: down")
        if self.owner_error:
            raise OwnershipError(self.owner_error)
        if epoch and epoch < self.epoch:
            raise OwnershipError("a lower epoch")
        self.epoch = epoch or self.epoch + 1
        return ExecutorInfo(
            incarnation=self.incarnation,
            epoch=self.epoch,
            model_fingerprint=self.fingerprint,
            model_name="shadow",
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_rows=self.max_rows,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            vocab_size=self.vocab_size,
            kv_bytes_per_token=8,
            dtype="float32",
            kv_cache_dtype="float32",
            device="cpu",
        )

    async def get_model(self, info: ExecutorInfo) -> dict[str, bytes]:
        return FILES

    def open_stream(self, info: ExecutorInfo) -> StepStream:
        self.shadow.forget_samples()
        self.streams.append(FakeStream(self))
        return self.stream

    async def close(self) -> None:
        pass


class FakeStream:
    """Executes plans in order where `results` is read, as one device does."""

    def __init__(self, client: FakeExecutorClient) -> None:
        self.news = asyncio.Event()
        self.waiting: deque[StepPlan] = deque()
        self._client = client
        self._error: Exception | None = None

    def send(self, plan: StepPlan) -> int:
        self._client.plans.append(plan)
        self.waiting.append(plan)
        self.news.set()
        return 100

    async def results(self) -> AsyncIterator[StepResult]:
        while True:
            await self.news.wait()
            self.news.clear()
            while self._error is None and self.waiting and self._may_execute():
                yield self._client.shadow.execute(self.waiting.popleft())
            if self._error is not None:
                raise self._error

    def _may_execute(self) -> bool:
        if not self._client.is_held:
            return True
        if self._client.num_released == 0:
            return False
        self._client.num_released -= 1
        return True

    def fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self.news.set()

    def cancel(self) -> None:
        self.fail(ExecutorLostError("cancelled"))
