"""How the loop talks to one executor: the protocol it needs, and that over gRPC.

A stream's `send` never waits: at most `run_ahead_depth` plans are in flight, so what queues up
behind a slow network is bounded. A plan is encoded where it is sent, in order, since encoder and
decoder share the memory of the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NoReturn, Protocol

import grpc

from common.codec import PlanEncoder, decode_result
from common.errors import ExecutorLostError, ModelError, OwnershipError, ResyncError
from common.grpc_server import Link, channel_options
from common.plan import StepPlan, StepResult
from common.protocol import PROTOCOL_VERSION
from proto import executor_pb2, executor_pb2_grpc

HELLO_TIMEOUT_S = 5.0
GET_MODEL_TIMEOUT_S = 60.0

_OPTIONS = [
    *channel_options(Link.INTERNAL),
    # Without this a new channel inherits the backoff of the one that failed, up to two minutes.
    ("grpc.use_local_subchannel_pool", 1),
    # Container engines hand a proxy meant for the internet to every container.
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorInfo:
    """What an executor said at Hello. Fields as in HelloReply."""

    incarnation: int
    epoch: int
    model_fingerprint: str
    model_name: str
    block_size: int
    num_blocks: int
    max_rows: int
    max_model_len: int
    max_num_batched_tokens: int
    vocab_size: int
    kv_bytes_per_token: int
    dtype: str
    kv_cache_dtype: str
    device: str


class StepStream(Protocol):
    """One Execute call."""

    def send(self, plan: StepPlan) -> int:
        """Queues the plan for the wire; returns its encoded size in bytes. Never waits."""

    def results(self) -> AsyncIterator[StepResult]:
        """Results as they come. Ends by ResyncError or ExecutorLostError, never quietly."""

    def cancel(self) -> None:
        """Ends the call, and `results` with it; every step in flight is void. Idempotent."""


class ExecutorClient(Protocol):
    """One executor, wherever and whichever process it is at the moment."""

    @property
    def address(self) -> str: ...

    async def hello(self, epoch: int) -> ExecutorInfo:
        """Claims the executor, over a fresh connection; 0 asks it to choose the epoch.

        ExecutorLostError if it cannot be reached, OwnershipError if another scheduler owns it.
        """

    async def get_model(self, info: ExecutorInfo) -> dict[str, bytes]:
        """The model's files by name, for the fingerprint in `info`."""

    def open_stream(self, info: ExecutorInfo) -> StepStream: ...

    async def close(self) -> None: ...


class GrpcExecutorClient:
    """ExecutorClient over executor.proto."""

    def __init__(self, address: str, *, scheduler_id: str) -> None:
        self._address = address
        self._scheduler_id = scheduler_id
        self._channel: grpc.aio.Channel | None = None
        self._files: tuple[str, dict[str, bytes]] | None = None

    @property
    def address(self) -> str:
        return self._address

    async def hello(self, epoch: int) -> ExecutorInfo:
        await self.close()
        self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        request = executor_pb2.HelloRequest(
            scheduler_id=self._scheduler_id, epoch=epoch, protocol_version=PROTOCOL_VERSION
        )
        try:
            reply = await self._stub().Hello(request, timeout=HELLO_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                raise OwnershipError(error.details()) from error
            _lost(error)
        return ExecutorInfo(
            **{name: getattr(reply, name) for name in ExecutorInfo.__dataclass_fields__}
        )

    async def get_model(self, info: ExecutorInfo) -> dict[str, bytes]:
        known = self._files[0] if self._files is not None else ""
        request = executor_pb2.GetModelRequest(known_fingerprint=known)
        parts: dict[str, list[bytes]] = {}
        fingerprint = ""
        try:
            async for part in self._stub().GetModel(request, timeout=GET_MODEL_TIMEOUT_S):
                fingerprint = part.fingerprint
                if part.file_name:
                    parts.setdefault(part.file_name, []).append(part.data)
        except grpc.aio.AioRpcError as error:
            _lost(error)
        if fingerprint != info.model_fingerprint:
            raise ModelError(f"executor {self._address} sent another model than it announced")
        if self._files is None or known != fingerprint:
            self._files = fingerprint, {name: b"".join(data) for name, data in parts.items()}
        return self._files[1]

    def open_stream(self, info: ExecutorInfo) -> StepStream:
        return GrpcStepStream(self._stub(), info)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None

    def _stub(self) -> executor_pb2_grpc.ExecutorStub:
        if self._channel is None:
            raise ExecutorLostError(f"executor {self._address} is not connected")
        return executor_pb2_grpc.ExecutorStub(self._channel)


class GrpcStepStream:
    """StepStream over one Execute call."""

    def __init__(self, stub: executor_pb2_grpc.ExecutorStub, info: ExecutorInfo) -> None:
        self._info = info
        self._encoder = PlanEncoder(info.max_rows)
        self._outgoing: asyncio.Queue[executor_pb2.StepMessage] = asyncio.Queue()
        self._call = stub.Execute(self._messages())

    def send(self, plan: StepPlan) -> int:
        message = self._encoder.encode(
            plan, incarnation=self._info.incarnation, epoch=self._info.epoch
        )
        self._outgoing.put_nowait(message)
        return int(message.ByteSize())

    async def results(self) -> AsyncIterator[StepResult]:
        try:
            async for reply in self._call:
                if reply.HasField("resync"):
                    raise ResyncError(reply.resync.reason)
                yield decode_result(reply)
        except grpc.aio.AioRpcError as error:
            _lost(error)
        except asyncio.CancelledError:
            # gRPC says so too when the call, not this task, was cancelled.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ExecutorLostError("the step stream was cancelled") from None
        raise ExecutorLostError("the executor ended the step stream")

    def cancel(self) -> None:
        self._call.cancel()

    async def _messages(self) -> AsyncIterator[executor_pb2.StepMessage]:
        while True:
            yield await self._outgoing.get()


def _lost(error: grpc.aio.AioRpcError) -> NoReturn:
    raise ExecutorLostError(f"{error.code().name}: {error.details()}") from error
