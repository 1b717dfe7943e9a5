"""The client without asyncio: for scripts, threads and terminals."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
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


class SyncClient:
    """Talks gRPC to one scheduler, from any thread. Methods mean what `Client`'s mean.

    It uses gRPC's blocking stubs and no event loop: a second grpc.aio loop in a process that has
    one already makes both spin.
    """

    def __init__(
        self, target: str, api_key: str | None = None, *, retries: RetryPolicy | None = None
    ) -> None:
        self._channel = grpc.insecure_channel(target, options=client_options())
        self._stub: Any = InferenceStub(self._channel)
        self._look: Any = self._channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
        self._metadata = call_metadata(api_key)
        self._retries = retries or RetryPolicy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def generate(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> Generator[Chunk, None, None]:
        """As `Client.generate`. Closing the iterator ends the request on the server."""
        generation = ResumableGeneration(wire.generate_request(prompt, options), self._retries)
        deadline = Deadline(options.get("timeout_s"))
        while not generation.complete:
            call = self._stub.Generate(
                generation.next_request(), metadata=self._metadata, timeout=deadline.left_s()
            )
            pause_s = None
            try:
                for reply in call:
                    yield from generation.receive(reply)
            except grpc.RpcError as error:
                pause_s = generation.interrupted(_octavo_error(error))
            finally:
                call.cancel()
            if pause_s is not None:
                deadline.require(pause_s)
                self._pause(pause_s)
                continue
            yield from generation.ended()

    def generate_text(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        collector = Collector()
        for chunk in self.generate(prompt, **options):
            collector.add(chunk)
        return collector.result()

    def abort(self, request_id: str) -> bool:
        return bool(self._call("Abort", pb.AbortRequest(request_id=request_id)).found)

    def model_info(self) -> ModelInfo:
        return wire.read_model_info(self._call("GetModelInfo", pb.GetModelInfoRequest()))

    def server_info(self) -> ServerInfo:
        return wire.read_server_info(self._call("GetServerInfo", pb.GetServerInfoRequest()))

    def tokenize(
        self, prompt: str | Sequence[Message], *, add_special_tokens: bool | None = None
    ) -> tuple[int, ...]:
        request = wire.tokenize_request(prompt, add_special_tokens=add_special_tokens)
        return tuple(self._call("Tokenize", request).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None
    ) -> str:
        request = wire.detokenize_request(token_ids, skip_special_tokens=skip_special_tokens)
        return str(self._call("Detokenize", request).text)

    def _call(self, method: str, request: Any) -> Any:
        tries = UnaryTries(self._retries, DEFAULT_TIMEOUT_S)
        while True:
            try:
                return getattr(self._stub, method)(
                    request, metadata=self._metadata, timeout=tries.timeout_s()
                )
            except grpc.RpcError as error:
                pause_s = tries.failed(_octavo_error(error))
            self._pause(pause_s)

    def _pause(self, seconds: float) -> None:
        """Sleeps, and has the channel connect meanwhile.

        A blocking channel reads its sockets while a call waits on it, and else every 5 s. Between
        two tries none does, so that the connection to a server that is back would be noticed when
        the time for it was over, again and again.
        """
        ends_at = time.monotonic() + seconds
        with contextlib.suppress(grpc.RpcError):  # what it answers does not matter
            self._look(b"", timeout=seconds, wait_for_ready=True)
        time.sleep(max(0.0, ends_at - time.monotonic()))


def _octavo_error(error: Any) -> OctavoError:
    return to_octavo_error(error.code(), error.details(), error.trailing_metadata())
