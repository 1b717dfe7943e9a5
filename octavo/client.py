"""The asyncio client. `SyncClient` is the same without asyncio; the meaning of both lies in
`wire` (messages), `resume` (broken streams) and `rpc_errors` (statuses)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from common.errors import OctavoError
from octavo import wire
from octavo.collect import Collector
from octavo.connection import DEFAULT_TIMEOUT_S, call_metadata, client_options
from octavo.deadline import Deadline
from octavo.resume import ResumableGeneration
from octavo.retries import RetryPolicy, UnaryTries
from octavo.rpc_errors import to_octavo_error
from octavo.types import (
    Chunk,
    GenerateOptions,
    Generation,
    Message,
    ModelInfo,
    Prompt,
    ServerInfo,
)
from proto import inference_pb2 as pb
from proto.inference_pb2_grpc import InferenceStub


class Client:
    """Talks gRPC to one scheduler. Create it inside the event loop that uses it.

    async with Client("127.0.0.1:50051") as client:
        async for chunk in client.generate("Once upon a time", max_tokens=50):
            if isinstance(chunk, Delta):
                print(chunk.text, end="", flush=True)

    Every error is an OctavoError: InvalidRequestError names the `field` at fault, QueueFullError
    says when to come back, UnavailableError means that all tries failed.
    """

    def __init__(
        self, target: str, api_key: str | None = None, *, retries: RetryPolicy | None = None
    ) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=client_options())
        self._stub: Any = InferenceStub(self._channel)
        self._metadata = call_metadata(api_key)
        self._retries = retries or RetryPolicy()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close(None)

    async def generate(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerator[Chunk, None]:
        """Streams an answer: Started, then Delta and Finished of each choice, then Usage.

        A broken stream is taken up again where it broke. Leaving the loop early ends the request
        on the server once the iterator is closed: use `contextlib.aclosing` to do so at once.
        """
        generation = ResumableGeneration(wire.generate_request(prompt, options), self._retries)
        deadline = Deadline(options.get("timeout_s"))
        while not generation.complete:
            call = self._stub.Generate(
                generation.next_request(), metadata=self._metadata, timeout=deadline.left_s()
            )
            pause_s = None
            try:
                async for reply in call:
                    for chunk in generation.receive(reply):
                        yield chunk
            except grpc.aio.AioRpcError as error:
                pause_s = generation.interrupted(_octavo_error(error))
            finally:
                call.cancel()
            if pause_s is not None:
                deadline.require(pause_s)
                await asyncio.sleep(pause_s)
                continue
            for chunk in generation.ended():
                yield chunk

    async def generate_text(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """The whole answer at once. ServerError if a choice failed on the server."""
        collector = Collector()
        async with aclosing(self.generate(prompt, **options)) as chunks:
            async for chunk in chunks:
                collector.add(chunk)
        return collector.result()

    async def abort(self, request_id: str) -> bool:
        """Ends a request. False: unknown, or ended already."""
        reply = await self._call("Abort", pb.AbortRequest(request_id=request_id))
        return bool(reply.found)

    async def model_info(self) -> ModelInfo:
        return wire.read_model_info(await self._call("GetModelInfo", pb.GetModelInfoRequest()))

    async def server_info(self) -> ServerInfo:
        return wire.read_server_info(await self._call("GetServerInfo", pb.GetServerInfoRequest()))

    async def tokenize(
        self, prompt: str | Sequence[Message], *, add_special_tokens: bool | None = None
    ) -> tuple[int, ...]:
        """Token ids of a text, or of a conversation as the chat template renders it."""
        request = wire.tokenize_request(prompt, add_special_tokens=add_special_tokens)
        return tuple((await self._call("Tokenize", request)).token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None
    ) -> str:
        request = wire.detokenize_request(token_ids, skip_special_tokens=skip_special_tokens)
        return str((await self._call("Detokenize", request)).text)

    async def _call(self, method: str, request: Any) -> Any:
        """One unary call. All of them may be repeated, so an unavailable server is tried again."""
        tries = UnaryTries(self._retries, DEFAULT_TIMEOUT_S)
        while True:
            try:
                return await getattr(self._stub, method)(
                    request, metadata=self._metadata, timeout=tries.timeout_s()
                )
            except grpc.aio.AioRpcError as error:
                pause_s = tries.failed(_octavo_error(error))
            await asyncio.sleep(pause_s)


def _octavo_error(error: grpc.aio.AioRpcError) -> OctavoError:
    # Listed first: dict() of an aio Metadata takes it for a mapping and fails.
    metadata: Any = tuple(error.trailing_metadata())
    return to_octavo_error(error.code(), error.details(), metadata)
