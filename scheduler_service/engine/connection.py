"""The worker's side of the local socket to the step loop.

Submitting and aborting never wait: commands made in one turn of the event loop go out as one frame.
Loss of the loop ends every stream with `lost`, and the connection is rebuilt in the background,
since a restarted loop listens on the same path.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from array import array
from collections.abc import Coroutine
from typing import Any

import msgspec

from common.errors import TooLargeError, UnavailableError
from common.plan import TOKEN_TYPECODE
from scheduler_service.engine import framing
from scheduler_service.engine.framing import frame, read_frame
from scheduler_service.engine.messages import (
    Abort,
    Call,
    CallMethod,
    Command,
    Finish,
    ModelReady,
    Readiness,
    Refused,
    Reply,
    ServerInfo,
    StepOutputs,
    Submit,
    Update,
)
from scheduler_service.engine.streams import RequestStream

log = logging.getLogger(__name__)

RECONNECT_INTERVAL_S = 0.1
_GONE = "the step loop is gone"


class EngineConnection:
    """One per API worker. All methods belong to the event loop that opened it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Update)
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._handles = itertools.count(1)
        self._call_ids = itertools.count(1)
        self._streams: dict[int, RequestStream] = {}
        self._choices_left: dict[int, int] = {}
        self._calls: dict[int, asyncio.Future[object]] = {}
        self._commands: list[Command] = []
        self._model: asyncio.Future[ModelReady] = asyncio.get_running_loop().create_future()
        self._model_changed = asyncio.Event()
        self._readiness = Readiness(False, "starting")
        self._readiness_news = asyncio.Event()

    @classmethod
    async def open(cls, path: str, *, timeout_s: float = 30.0) -> EngineConnection:
        """Connects; UnavailableError if nothing listens on `path` within `timeout_s`."""
        connection = cls(path)
        deadline = time.monotonic() + timeout_s
        while not await connection._connect():
            if time.monotonic() > deadline:
                raise UnavailableError(f"no step loop listens on {path}")
            await asyncio.sleep(RECONNECT_INTERVAL_S)
        return connection

    async def close(self) -> None:
        """Ends every stream with `lost`, and the loop aborts what it still ran for this worker."""
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        self._lose("closed")

    @property
    def readiness(self) -> Readiness:
        """The latest word of the loop."""
        return self._readiness

    def readiness_changed(self) -> Coroutine[Any, Any, Readiness]:
        """Waits for the next word after this call, even if the wait itself begins later."""
        return self._wait_for(self._readiness_news)

    async def _wait_for(self, news: asyncio.Event) -> Readiness:
        await news.wait()
        return self._readiness

    async def model(self) -> ModelReady:
        """Waits until the loop has told the model; the first one it told, ever after."""
        return await asyncio.shield(self._model)

    async def model_changed(self) -> None:
        """Returns if a restarted loop serves another model than `model` told."""
        await self._model_changed.wait()

    def next_handle(self) -> int:
        return next(self._handles)

    def submit(self, submit: Submit, stream: RequestStream) -> None:
        if self._writer is None:
            stream.push_lost(_GONE)
            return
        self._streams[submit.handle] = stream
        self._choices_left[submit.handle] = len(submit.prior_outputs) or submit.n
        self._send(submit)

    def finish(self, handle: int, choice: int, num_output_tokens: int) -> None:
        """A stop string was found: the choice ends at `num_output_tokens`, as a stop."""
        self._send(Finish(handle, choice, num_output_tokens))

    def abort(self, request_id: str) -> None:
        """Fire and forget. Nothing needs to be read from the request's stream any more."""
        self._send(Abort(request_id))

    async def abort_by_id(self, request_id: str) -> bool:
        """Ends a request of whichever worker; False if none of that id is live."""
        call_id, reply = self._open_call()
        self._send(Abort(request_id, call_id))
        return bool(await reply)

    async def call(self, method: CallMethod) -> object:
        """Asks the loop: see `Reply` for what comes back. UnavailableError if the loop is gone."""
        call_id, reply = self._open_call()
        self._send(Call(call_id, method))
        value = await reply
        return msgspec.convert(value, ServerInfo) if method == "server_info" else value

    def _open_call(self) -> tuple[int, asyncio.Future[object]]:
        if self._writer is None:
            raise UnavailableError(_GONE)
        call_id = next(self._call_ids)
        self._calls[call_id] = asyncio.get_running_loop().create_future()
        return call_id, self._calls[call_id]

    def _send(self, command: Command) -> None:
        """Without a loop there is nothing to abort or finish: such commands are dropped."""
        if self._writer is None:
            return
        if not self._commands:
            asyncio.get_running_loop().call_soon(self._flush)
        self._commands.append(command)

    def _flush(self) -> None:
        commands, self._commands = self._commands, []
        if self._writer is not None and commands:
            self._write(self._writer, commands)

    def _write(self, writer: asyncio.StreamWriter, commands: list[Command]) -> None:
        """One frame or, if that were too long, several; a command never costs others theirs."""
        payload = self._encoder.encode(commands)
        if len(payload) <= framing.MAX_FRAME_BYTES:
            writer.write(frame(payload))
        elif len(commands) > 1:
            middle = len(commands) // 2
            self._write(writer, commands[:middle])
            self._write(writer, commands[middle:])
        elif isinstance(submit := commands[0], Submit):
            self._refuse(submit, f"the request takes {len(payload)} bytes inside the server")

    def _refuse(self, submit: Submit, message: str) -> None:
        self._choices_left.pop(submit.handle, None)
        if stream := self._streams.pop(submit.handle, None):
            stream.push_refused(Refused(submit.handle, "invalid", "", message))

    async def _connect(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except (FileNotFoundError, ConnectionError):
            return False
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader))
        return True

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while (payload := await read_frame(reader)) is not None:
                self._receive(self._decoder.decode(payload))
        except (msgspec.DecodeError, TooLargeError):
            log.exception("the step loop sent nonsense")
        # A loop that drains ends when it has nothing left; any other end is a loss.
        if self._readiness.draining:
            log.info("the step loop has ended")
        else:
            log.warning("the step loop has ended; reconnecting")
        self._lose(_GONE)
        await self._reconnect()

    async def _reconnect(self) -> None:
        while True:
            if await self._connect():
                log.info("reconnected to the step loop")
                return
            await asyncio.sleep(RECONNECT_INTERVAL_S)

    def _lose(self, reason: str) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._commands.clear()
        self._set_readiness(Readiness(False, reason, self._readiness.draining))
        streams, self._streams = self._streams, {}
        self._choices_left.clear()
        for stream in streams.values():
            stream.push_lost(reason)
        calls, self._calls = self._calls, {}
        for reply in calls.values():
            if not reply.done():
                reply.set_exception(UnavailableError(reason))

    def _receive(self, update: Update) -> None:
        match update:
            case StepOutputs():
                self._apply(update)
            case Readiness():
                self._set_readiness(update)
            case Reply(call_id, value):
                reply = self._calls.pop(call_id, None)
                if reply is not None and not reply.done():
                    reply.set_result(value)
            case ModelReady():
                self._set_model(update)

    def _set_readiness(self, readiness: Readiness) -> None:
        self._readiness = readiness
        news, self._readiness_news = self._readiness_news, asyncio.Event()
        news.set()

    def _set_model(self, model: ModelReady) -> None:
        if not self._model.done():
            self._model.set_result(model)
        elif self._model.result().fingerprint != model.fingerprint:
            log.error("the step loop serves another model now", extra={"model": model.name})
            self._model_changed.set()

    def _apply(self, outputs: StepOutputs) -> None:
        streams = self._streams
        for admitted in outputs.admitted:
            if stream := streams.get(admitted.handle):
                stream.push_admitted(admitted)
        for handle, first_position, entries in outputs.prompt_logprobs:
            if stream := streams.get(handle):
                stream.push_prompt_logprobs(first_position, entries)
        tokens = array(TOKEN_TYPECODE, outputs.tokens)
        logprobs = outputs.logprobs
        rows = zip(outputs.handles, outputs.indexes, tokens, strict=True)
        for position, (handle, choice, token) in enumerate(rows):
            if stream := streams.get(handle):
                stream.push_token(choice, token, logprobs.get(position))
        for refused in outputs.refused:
            self._choices_left.pop(refused.handle, None)
            if stream := streams.pop(refused.handle, None):
                stream.push_refused(refused)
        for finished in outputs.finished:
            if stream := streams.get(finished.handle):
                stream.push_finished(finished)
                self._choices_left[finished.handle] -= 1
                if not self._choices_left[finished.handle]:
                    del streams[finished.handle], self._choices_left[finished.handle]
