"""The Executor service: protocol in, protocol out. Each call is a thin walk over its parts."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from common.errors import OctavoError, OwnershipError, UnavailableError
from common.grpc_server import abort
from common.protocol import (
    CAPABILITY_LOGPROBS,
    MAX_MODEL_PART_BYTES,
    MODEL_FILES,
    PROTOCOL_VERSION,
    accepts_version,
)
from executor_service.rpc.counters import ExecutorCounters
from executor_service.rpc.device_thread import DeviceThread
from executor_service.rpc.ownership import Ownership
from executor_service.rpc.queued_step import StepDone
from executor_service.rpc.runner_port import StepRunner
from executor_service.rpc.step_stream import StepStream
from proto import executor_pb2, executor_pb2_grpc

log = logging.getLogger(__name__)

SERVICE_NAME = "octavo.executor.v1.Executor"

_HELLO_FIELDS = (
    "model_name",
    "block_size",
    "num_blocks",
    "max_rows",
    "max_model_len",
    "max_num_batched_tokens",
    "vocab_size",
    "kv_bytes_per_token",
    "dtype",
    "kv_cache_dtype",
    "device",
)
QUIET_S = 0.5
"""A stream that has had nothing in flight for so long may be ended by shutting down."""
_POLL_S = 0.05
_END_S = 1.0


class ExecutorServicer(executor_pb2_grpc.ExecutorServicer):
    """Lives on one event loop. Until `set_runner` every call but GetInfo is UNAVAILABLE."""

    def __init__(
        self, device: DeviceThread, *, incarnation: int, on_drain: Callable[[], Awaitable[None]]
    ) -> None:
        self._device = device
        self._incarnation = incarnation
        self._runner: StepRunner | None = None
        self._ownership = Ownership()
        self._stream: StepStream | None = None
        self._on_drain = on_drain
        self.counters = ExecutorCounters()
        self._watchers: list[Callable[[StepDone], None]] = []

    def set_runner(self, runner: StepRunner) -> None:
        """The model is loaded and warm."""
        self._runner = runner

    def watch(self, on_step: Callable[[StepDone], None]) -> None:
        """Called with every step whose result is sent, from now on."""
        self._watchers.append(on_step)

    @property
    def has_stream(self) -> bool:
        return self._stream is not None

    @property
    def steps_in_flight(self) -> int:
        """Plans of the open stream whose results were not sent yet."""
        return self._stream.num_in_flight if self._stream else 0

    async def Hello(self, request: Any, context: Any) -> executor_pb2.HelloReply:
        try:
            spec = self._ready_runner().spec
            if not accepts_version(request.protocol_version):
                raise OwnershipError(
                    f"protocol version {request.protocol_version} is not served here:"
                    f" this executor speaks {PROTOCOL_VERSION}"
                )
            owner = self._ownership.claim(request.scheduler_id, request.epoch, time.monotonic())
        except OctavoError as error:
            await abort(context, error)
        if self._stream is not None:
            self._stream.end(OwnershipError(f"superseded by epoch {owner.epoch}"))
        log.info("claimed", extra={"scheduler": owner.scheduler_id, "epoch": owner.epoch})
        return executor_pb2.HelloReply(
            incarnation=self._incarnation,
            epoch=owner.epoch,
            protocol_version=PROTOCOL_VERSION,
            model_fingerprint=spec.fingerprint,
            capabilities=[CAPABILITY_LOGPROBS],
            **{name: getattr(spec, name) for name in _HELLO_FIELDS},
        )

    async def GetModel(self, request: Any, context: Any) -> AsyncIterator[executor_pb2.ModelPart]:
        try:
            runner = self._ready_runner()
        except OctavoError as error:
            await abort(context, error)
        fingerprint = runner.spec.fingerprint
        if request.known_fingerprint == fingerprint:
            yield executor_pb2.ModelPart(fingerprint=fingerprint)
            return
        for name in MODEL_FILES:
            data = runner.model_files.get(name)
            if data is None:
                continue
            for first in range(0, max(len(data), 1), MAX_MODEL_PART_BYTES):
                part = data[first : first + MAX_MODEL_PART_BYTES]
                yield executor_pb2.ModelPart(fingerprint=fingerprint, file_name=name, data=part)

    async def Execute(self, request_iterator: Any, context: Any) -> None:
        try:
            max_rows = self._ready_runner().spec.max_rows
            stream = StepStream(
                self._device,
                self._ownership.attach(),
                incarnation=self._incarnation,
                max_rows=max_rows,
                counters=self.counters,
                on_step=self._step_sent,
            )
        except OctavoError as error:
            await abort(context, error)
        self._stream = stream
        self.counters.num_streams += 1
        try:
            await stream.serve(context)
        except OctavoError as error:
            await abort(context, error)
        finally:
            log.info("step stream ended", extra={"epoch": stream.owner.epoch})
            self._ownership.detach(stream.owner)
            if self._stream is stream:
                self._stream = None

    async def GetInfo(self, request: Any, context: Any) -> executor_pb2.GetInfoReply:
        spec = self._runner.spec if self._runner else None
        holder = self._ownership.held_by(time.monotonic())
        counters = self.counters
        return executor_pb2.GetInfoReply(
            incarnation=self._incarnation,
            max_epoch=self._ownership.max_epoch,
            owner=holder.scheduler_id if holder else "",
            num_steps=counters.num_steps,
            num_decode_steps=counters.num_decode_steps,
            num_decode_steps_ready=counters.num_decode_steps_ready,
            num_resyncs=counters.num_resyncs,
            num_sequence_errors=counters.num_sequence_errors,
            draining=self._ownership.is_draining,
            num_rows=self._stream.num_rows if self._stream else 0,
            memory_weights_bytes=spec.weights_bytes if spec else 0,
            memory_kv_bytes=spec.kv_bytes if spec else 0,
        )

    async def Drain(self, request: Any, context: Any) -> executor_pb2.DrainReply:
        await self.refuse_claims()
        return executor_pb2.DrainReply(idle=await self.wait_idle(request.timeout_ms / 1000))

    async def refuse_claims(self) -> None:
        """The first half of draining. Idempotent."""
        self._ownership.drain()
        await self._on_drain()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Until no stream is left; False if one is after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self._stream is not None:
            if not await self._stream.wait_ended(deadline - time.monotonic()):
                return False
        return True

    async def end_quietly(self, timeout_s: float) -> None:
        """The second half of draining: ends the stream when it is quiet, or after `timeout_s`.

        An owner does not end its stream for want of work, so silence has to do.
        """
        deadline = time.monotonic() + timeout_s
        error = UnavailableError("this executor is shutting down")
        while (stream := self._stream) is not None:
            now = time.monotonic()
            if now >= deadline or stream.quiet_s(now) >= QUIET_S:
                stream.end(error)
                await stream.wait_ended(_END_S)
                return
            await stream.wait_ended(min(_POLL_S, deadline - now))

    def _ready_runner(self) -> StepRunner:
        if self._runner is None:
            raise UnavailableError("the model is still loading")
        return self._runner

    def _step_sent(self, done: StepDone) -> None:
        for on_step in self._watchers:
            on_step(done)

    def gauges(self) -> dict[str, float]:
        stream = self._stream
        return {
            "ready": self._runner is not None,
            "draining": self._ownership.is_draining,
            "epoch": self._ownership.max_epoch,
            "streams_open": stream is not None,
            "rows_in_use": stream.num_rows if stream else 0,
            "steps_in_flight": self.steps_in_flight,
            "weights_bytes": self._runner.spec.weights_bytes if self._runner else 0,
            "kv_bytes": self._runner.spec.kv_bytes if self._runner else 0,
        }
