"""One Execute call: plans in, results out, both in order.

    read -> decode -> device queue -> run -> deliver -> write

At most `MAX_QUEUED_STEPS` plans are past the read at any time; beyond that the peer is held back by
gRPC's flow control. The end of the call voids what is queued; a step that runs finishes unheard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from common.codec import PlanDecoder, encode_result, encode_resync
from common.errors import OctavoError, ResyncError
from common.plan import ErrorCode, SequenceError, StepPlan, StepResult
from executor_service.rpc.counters import ExecutorCounters
from executor_service.rpc.device_thread import DeviceThread
from executor_service.rpc.ownership import Owner
from executor_service.rpc.queued_step import QueuedStep, StepDone, StreamToken
from proto import executor_pb2

log = logging.getLogger(__name__)

MAX_QUEUED_STEPS = 4


class StepStream:
    """Serves one call, on the event loop's thread."""

    def __init__(
        self,
        device: DeviceThread,
        owner: Owner,
        *,
        incarnation: int,
        max_rows: int,
        counters: ExecutorCounters,
        on_step: Callable[[StepDone], None],
    ) -> None:
        self._device = device
        self._owner = owner
        self._incarnation = incarnation
        self._counters = counters
        self._on_step = on_step
        self._decoder = PlanDecoder(max_rows, incarnation=incarnation, epoch=owner.epoch)
        self._token = StreamToken()
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(MAX_QUEUED_STEPS)
        self._outgoing: asyncio.Queue[executor_pb2.StepResult | Exception | None] = asyncio.Queue()
        self._num_in_flight = 0
        self._no_more_plans = False
        self._quiet_since = time.monotonic()
        self._ended = asyncio.Event()

    @property
    def owner(self) -> Owner:
        return self._owner

    @property
    def num_rows(self) -> int:
        return self._decoder.num_rows

    @property
    def num_in_flight(self) -> int:
        """Plans decoded whose results were not written yet."""
        return self._num_in_flight

    def quiet_s(self, now: float) -> float:
        """For how long nothing has been in flight, by time.monotonic."""
        return 0.0 if self._num_in_flight else now - self._quiet_since

    async def wait_ended(self, timeout_s: float) -> bool:
        """Whether `serve` has returned within the time."""
        try:
            await asyncio.wait_for(self._ended.wait(), max(0.0, timeout_s))
        except TimeoutError:
            return False
        return True

    def end(self, error: OctavoError) -> None:
        """Ends the call with the error's status; every step in flight is void from now on."""
        self._void()
        self._outgoing.put_nowait(error)

    async def serve(self, context: Any) -> None:
        """Returns when the peer has closed its side and has all results, or after a Resync."""
        reader = asyncio.create_task(self._read(context))
        try:
            while (reply := await self._outgoing.get()) is not None:
                if isinstance(reply, Exception):
                    raise reply
                await context.write(reply)
                if reply.HasField("resync"):
                    return
                self._num_in_flight -= 1
                self._quiet_since = time.monotonic()
                self._end_if_answered()
        finally:
            self._void()
            reader.cancel()
            self._ended.set()

    def _void(self) -> None:
        self._token.is_void = True

    async def _read(self, context: Any) -> None:
        """Decodes and queues messages until the peer closes, or one does not fit the stream."""
        try:
            while (message := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                await self._room.acquire()
                self._take(message)
        except (ResyncError, DecodeError) as error:
            self._resync(str(error))
        except Exception as error:  # noqa: BLE001 - `serve` raises it where gRPC sees it
            self._outgoing.put_nowait(error)
        else:
            self._no_more_plans = True
            self._end_if_answered()

    def _take(self, message: executor_pb2.StepMessage) -> None:
        if message.WhichOneof("body") in ("mask", "skip"):
            # No sequence waits for one: masks are not among this executor's capabilities.
            self._decoder.check(message)
            self._room.release()
            return
        plan = self._decoder.decode(message)
        decoded_ns = time.perf_counter_ns()
        self._num_in_flight += 1
        self._device.submit(
            QueuedStep(
                plan=plan, stream=self._token, decoded_ns=decoded_ns, deliver=self._deliver_soon
            )
        )
        self._counters.plan_bytes += message.ByteSize()

    def _deliver_soon(self, done: StepDone) -> None:
        """On the device thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(self._deliver, done)

    def _deliver(self, done: StepDone) -> None:
        self._room.release()
        if done.result is not None:
            refuse_masked(done.step.plan, done.result)
        self._counters.step_done(done)
        if done.result is None or self._token.is_void:
            return
        self._on_step(done)
        self._outgoing.put_nowait(
            encode_result(done.result, incarnation=self._incarnation, epoch=self._owner.epoch)
        )

    def _resync(self, reason: str) -> None:
        log.warning("the step stream is out of step: %s", reason)
        self._counters.num_resyncs += 1
        self._void()
        self._outgoing.put_nowait(
            encode_resync(reason, incarnation=self._incarnation, epoch=self._owner.epoch)
        )

    def _end_if_answered(self) -> None:
        if self._no_more_plans and self._num_in_flight == 0:
            self._outgoing.put_nowait(None)


def refuse_masked(plan: StepPlan, result: StepResult) -> None:
    """Fails the sequences that wait for a mask, and no others."""
    if not plan.masked:
        return
    failed = {error.sequence_id for error in result.errors}
    for position, spec in enumerate(plan.sampled):
        if spec.sequence_id not in plan.masked:
            continue
        result.tokens[position] = 0
        if spec.sequence_id not in failed:
            message = "this executor cannot mask tokens"
            code = ErrorCode.INTERNAL
            error = SequenceError(sequence_id=spec.sequence_id, code=code, message=message)
            result.errors += (error,)
