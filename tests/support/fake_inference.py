"""A scripted Inference service behind a real gRPC server, for tests of clients.

Its model is arithmetic: the token after position p is `p + 1000 * choice + seed % 7`, so a lost,
repeated or reseeded token shows in the answer. A script says where tries break.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import Any

import grpc

from common import errors
from common.grpc_server import GrpcServer, Link, Service, abort
from proto import inference_pb2 as pb
from proto import inference_pb2_grpc

SEED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """How one try ends early. A try without a break runs to its end."""

    after_messages: int
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    error: errors.OctavoError | None = None
    """Ends the call through the product's own table instead of with a bare code."""


@dataclass(slots=True)
class FakeInference(inference_pb2_grpc.InferenceServicer):  # type: ignore[misc]
    """Records every request; break i applies to the i-th Generate call."""

    breaks: Sequence[Break | None] = ()
    tokens_per_message: int = 1
    unary_failures: int = 0
    """So many unary calls fail UNAVAILABLE before one is answered."""
    hang: bool = False
    """Generate sends its first message and nothing more until it is cancelled."""
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    cancelled: Event = field(default_factory=Event)

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> Any:  # noqa: N802
        attempt = len(self.requests)
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        broken = self.breaks[attempt] if attempt < len(self.breaks) else None
        for sent, reply in enumerate(self._replies(request)):
            if broken and sent == broken.after_messages:
                if broken.error:
                    await abort(context, broken.error)
                await context.abort(broken.code, "scripted break")
            yield reply
            if self.hang:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()

    def _replies(self, request: pb.GenerateRequest) -> Iterator[pb.GenerateReply]:
        """Started; then `tokens_per_message` tokens of every choice a message; ends; usage."""
        seed = request.sampling.seed if request.sampling.HasField("seed") else SEED
        request_id = request.request_id or "chosen-by-server"
        yield pb.GenerateReply(
            request_id=request_id,
            started=pb.Started(seed=seed, num_prompt_tokens=5, num_cached_tokens=2),
        )
        limit = request.sampling.max_tokens or 4
        n = max(1, request.n)
        done = dict.fromkeys(range(n), 0)
        over = set()
        for prior in request.prior_output:
            done[prior.index] = len(prior.token_ids)
            if prior.finished:
                over.add(prior.index)
        while len(over) < n:
            reply = pb.GenerateReply(request_id=request_id)
            for index in range(n):
                if index in over:
                    continue
                end = min(limit, done[index] + self.tokens_per_message)
                ids = [token_at(position, index, seed) for position in range(done[index], end)]
                if ids:
                    text = "".join(f"<{token}>" for token in ids) if request.return_text else ""
                    reply.deltas.add(index=index, token_ids=ids, text=text)
                done[index] = end
                # Choice 0 ends first, so that breaks can fall between two ends.
                if end == limit - (0 if index else min(1, n - 1)):
                    reply.finished.add(index=index, reason="length", num_output_tokens=end)
                    over.add(index)
            yield reply
        yield pb.GenerateReply(
            request_id=request_id,
            usage=pb.Usage(
                num_prompt_tokens=5, num_output_tokens=sum(done.values()), num_cached_tokens=2
            ),
        )

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortReply:  # noqa: N802
        await self._unary(context)
        return pb.AbortReply(found=request.request_id == "known")

    async def GetModelInfo(  # noqa: N802
        self, request: pb.GetModelInfoRequest, context: Any
    ) -> pb.GetModelInfoReply:
        await self._unary(context)
        return pb.GetModelInfoReply(
            model="fake",
            fingerprint="f",
            max_model_len=64,
            vocab_size=5000,
            eos_token_ids=[2, 3],
            has_chat_template=True,
            dtype="float32",
            kv_cache_dtype="float32",
        )

    async def GetServerInfo(  # noqa: N802
        self, request: pb.GetServerInfoRequest, context: Any
    ) -> pb.GetServerInfoReply:
        await self._unary(context)
        return pb.GetServerInfoReply(version="1", ready=True, num_executors=1, num_free_blocks=9)

    async def Tokenize(  # noqa: N802
        self, request: pb.TokenizeRequest, context: Any
    ) -> pb.TokenizeReply:
        await self._unary(context)
        if request.HasField("messages"):
            text = "|".join(f"{m.role}:{m.content}" for m in request.messages.messages)
        else:
            text = request.text
        bos = [1] if request.add_special_tokens else []
        return pb.TokenizeReply(token_ids=[*bos, *text.encode()], max_model_len=64)

    async def Detokenize(  # noqa: N802
        self, request: pb.DetokenizeRequest, context: Any
    ) -> pb.DetokenizeReply:
        await self._unary(context)
        return pb.DetokenizeReply(text=bytes(request.token_ids).decode())

    async def _unary(self, context: Any) -> None:
        self.metadata.append(dict(context.invocation_metadata()))
        if self.unary_failures:
            self.unary_failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted failure")


def token_at(position: int, index: int, seed: int) -> int:
    return position + 1000 * index + seed % 7


def answer(num_tokens: int, *, index: int = 0, seed: int = SEED) -> tuple[int, ...]:
    """The whole answer that an undisturbed try gives."""
    return tuple(token_at(position, index, seed) for position in range(num_tokens))


@asynccontextmanager
async def serve(fake: FakeInference) -> AsyncIterator[str]:
    """The address of a server in this event loop."""
    register = partial(inference_pb2_grpc.add_InferenceServicer_to_server, fake)
    service = Service("octavo.inference.v1.Inference", register)
    server = GrpcServer([service], host="127.0.0.1", port=0, link=Link.PUBLIC)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop(0)


@contextmanager
def serve_in_thread(fake: FakeInference) -> Iterator[str]:
    """The address of a server in an event loop of its own, for clients that block."""
    started = Event()
    addresses: list[str] = []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def run() -> None:
        async with serve(fake) as address:
            addresses.append(address)
            started.set()
            await over.wait()

    thread = Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(10), "the fake server did not start"
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()
