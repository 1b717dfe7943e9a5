"""Renders the chat template in a process of its own, with limits on time, memory and output.

A sandbox keeps a template from reaching attributes, but no sandbox ends a loop or a string of a
gigabyte, and a thread cannot be stopped. A process can: it is killed after a second and started
anew. It also keeps the rendering of long conversations out of the worker's event loop.

Frames on its stdin and stdout are those of the local socket: a length and a msgpack value.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import msgspec

from common.errors import InvalidRequestError, UnavailableError
from scheduler_service.api.chat_template import ChatTemplate, Message, TemplateFailure
from scheduler_service.engine.framing import frame, read_frame

log = logging.getLogger(__name__)

TIME_LIMIT_S = 1.0
MAX_OUTPUT_CHARS = 16 << 20
_START_TIME_LIMIT_S = 30.0
_MEMORY_BYTES = 1 << 30


class _Setup(msgspec.Struct, array_like=True, frozen=True):
    source: str
    special_tokens: dict[str, str]


class _Rendering(msgspec.Struct, array_like=True, frozen=True):
    messages: list[dict[str, object]]
    add_generation_prompt: bool


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    text: str | None
    error: str = ""


class TemplateProcess:
    """The worker's side. Renders one conversation at a time."""

    def __init__(self, setup: _Setup) -> None:
        self._setup = setup
        self._process: asyncio.subprocess.Process | None = None
        self._broken: str | None = None
        self._lock = asyncio.Lock()

    @classmethod
    async def start(cls, source: str, special_tokens: Mapping[str, str]) -> TemplateProcess:
        """A template that cannot be compiled is logged; every rendering then fails with that."""
        template = cls(_Setup(source, dict(special_tokens)))
        async with template._lock:
            await template._launch()
        return template

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """InvalidRequestError (messages) with the template's own words if it refuses them."""
        rendering = _Rendering([dict(message) for message in messages], add_generation_prompt)
        # Shielded: a client that leaves must not leave an unread answer in the pipe.
        answer = await asyncio.shield(self._render(msgspec.msgpack.encode(rendering)))
        if answer.text is None:
            raise InvalidRequestError(answer.error, field="messages")
        return answer.text

    async def _render(self, payload: bytes) -> _Answer:
        async with self._lock:
            if self._broken is not None:
                return _Answer(None, self._broken)
            if self._process is None:
                await self._launch()
            return await self._ask(payload, TIME_LIMIT_S)

    async def close(self) -> None:
        async with self._lock:
            await self._kill()

    async def _launch(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        answer = await self._ask(msgspec.msgpack.encode(self._setup), _START_TIME_LIMIT_S)
        if self._process is None:
            raise UnavailableError("the process that renders chat templates did not start")
        if answer.error:
            log.error("%s", answer.error)
            self._broken = answer.error
            await self._kill()

    async def _ask(self, payload: bytes, time_limit_s: float) -> _Answer:
        """Sends one frame and waits for its answer; a process that gives none is killed."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(time_limit_s):
                process.stdin.write(frame(payload))
                await process.stdin.drain()
                reply = await read_frame(process.stdout)
        except TimeoutError:
            await self._kill()
            return _Answer(None, f"the chat template took more than {time_limit_s:g} s")
        except ConnectionError:
            reply = None
        if reply is None:
            await self._kill()
            return _Answer(None, "the chat template took too much memory")
        return msgspec.msgpack.decode(reply, type=_Answer)

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def main() -> None:
    """The process's side: a setup frame, then one answer per rendering, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which closes stdin
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    payload = _read(requests)
    if payload is None:
        return
    setup = msgspec.msgpack.decode(payload, type=_Setup)
    try:
        template = ChatTemplate(setup.source, setup.special_tokens)
    except TemplateFailure as error:
        _write(answers, _Answer(None, str(error)))
        return
    _write(answers, _Answer(None))
    while (payload := _read(requests)) is not None:
        # Should the worker die meanwhile, nobody else ends a template that loops.
        signal.setitimer(signal.ITIMER_REAL, 2 * TIME_LIMIT_S)
        answer = _answer(template, msgspec.msgpack.decode(payload, type=_Rendering))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(answers, answer)


def _answer(template: ChatTemplate, request: _Rendering) -> _Answer:
    try:
        text = template.render(
            request.messages, add_generation_prompt=request.add_generation_prompt
        )
    except TemplateFailure as error:
        return _Answer(None, str(error))
    except MemoryError:
        return _Answer(None, "the chat template took too much memory")
    if len(text) > MAX_OUTPUT_CHARS:
        return _Answer(None, f"the chat template wrote more than {MAX_OUTPUT_CHARS} characters")
    return _Answer(text)


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "little")) if len(head) == 4 else None


def _write(stream: BinaryIO, answer: _Answer) -> None:
    stream.write(frame(msgspec.msgpack.encode(answer)))
    stream.flush()


if __name__ == "__main__":
    main()
