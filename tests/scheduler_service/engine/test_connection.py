"""Worker and loop joined by a real unix socket; the loop is a scripted one."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from common.errors import UnavailableError
from common.plan import SamplingParams, TokenLogprobs
from scheduler_service.engine import framing
from scheduler_service.engine.connection import EngineConnection
from scheduler_service.engine.messages import (
    Abort,
    Admitted,
    Call,
    Command,
    Finish,
    Finished,
    ModelReady,
    Readiness,
    Refused,
    Reply,
    ServerInfo,
    Submit,
)
from scheduler_service.engine.outbox import MAX_ENTRIES
from scheduler_service.engine.server import EngineServer, WorkerLink
from scheduler_service.engine.streams import RequestStream

MODEL = ModelReady("m", "f", {"config.json": b"{}"}, 100, 10, 16, 8, "float32", "float32")


@dataclass
class ScriptedEngine:
    """Records what workers send. `may_read` holds back reading, as a busy loop would."""

    workers: list[WorkerLink] = field(default_factory=list)
    left: list[WorkerLink] = field(default_factory=list)
    frames: asyncio.Queue[list[Command]] = field(default_factory=asyncio.Queue)
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    may_read: asyncio.Event = field(default_factory=asyncio.Event)

    def worker_joined(self, worker: WorkerLink) -> None:
        self.workers.append(worker)
        self.joined.set()

    def worker_left(self, worker: WorkerLink) -> None:
        self.left.append(worker)
        self.gone.set()

    def receive(self, worker: WorkerLink, commands: list[Command]) -> None:
        self.frames.put_nowait(commands)

    async def tell(self, model: ModelReady) -> None:
        """Once the worker is there: the model, and that the loop is ready."""
        await self.joined.wait()
        self.workers[0].outbox.put_model(model)
        self.workers[0].outbox.put_readiness(Readiness(True))
        self.workers[0].flush()

    async def caught_up(self) -> None:
        await self.may_read.wait()


async def start_engine(path: str) -> tuple[ScriptedEngine, EngineServer]:
    engine = ScriptedEngine()
    engine.may_read.set()
    server = EngineServer(path, engine)
    await server.start()
    return engine, server


async def close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.fixture
def socket_path(tmp_path: Path) -> str:
    return str(tmp_path / "engine.sock")


@pytest.fixture
async def engine(socket_path: str) -> AsyncIterator[ScriptedEngine]:
    engine, server = await start_engine(socket_path)
    yield engine
    await server.stop()


@pytest.fixture
async def connection(engine: ScriptedEngine, socket_path: str) -> AsyncIterator[EngineConnection]:
    connection = await EngineConnection.open(socket_path)
    await engine.joined.wait()
    yield connection
    await connection.close()


def submit(connection: EngineConnection, *, n: int = 1, tokens: tuple[int, ...] = (1, 2)) -> Submit:
    handle = connection.next_handle()
    return Submit(
        handle, f"r{handle}", array("i", tokens).tobytes(), SamplingParams(seed=2**64 - 1), n=n
    )


async def test_commands_of_one_turn_are_one_frame_in_order(
    engine: ScriptedEngine, connection: EngineConnection
) -> None:
    first = submit(connection)
    connection.submit(first, RequestStream())
    connection.finish(first.handle, 0, 3)
    connection.abort(first.request_id)
    assert await engine.frames.get() == [
        first,
        Finish(first.handle, 0, 3),
        Abort(first.request_id),
    ]


async def test_c80_commands_of_one_turn_that_make_too_long_a_frame_are_several(
    engine: ScriptedEngine, connection: EngineConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, and without the one that alone is too long, whose client is told so."""
    monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 10_000)
    streams = [RequestStream() for _ in range(5)]
    submits = [submit(connection, tokens=tuple(range(2000))) for _ in range(5)]
    submits[2] = submit(connection, tokens=tuple(range(3000)))
    for each, stream in zip(submits, streams, strict=True):
        connection.submit(each, stream)
    connection.abort(submits[4].request_id)
    refused = (await asyncio.wait_for(streams[2].next(), 5)).refused
    assert refused is not None
    assert (refused.handle, refused.kind) == (submits[2].handle, "invalid")
    received: list[Command] = []
    while len(received) < 5:
        received += await asyncio.wait_for(engine.frames.get(), 5)
    del submits[2]
    assert received == [*submits, Abort(submits[3].request_id)]
    assert engine.left == []


async def test_outputs_reach_the_stream_of_their_handle(
    engine: ScriptedEngine, connection: EngineConnection
) -> None:
    mine, other = RequestStream(), RequestStream()
    first, second = submit(connection, n=2), submit(connection)
    connection.submit(first, mine)
    connection.submit(second, other)
    await engine.frames.get()
    outbox = engine.workers[0].outbox
    outbox.put_admitted(Admitted(first.handle, 16))
    outbox.put_token(first.handle, 0, 5)
    outbox.put_token(second.handle, 0, 6)
    outbox.put_token(first.handle, 1, 7)
    outbox.put_logprobs(TokenLogprobs(2, (7, 8), (-1.0, -0.5)))
    outbox.put_finished(Finished(second.handle, 0, "stop", 1, stop_token_id=6))
    engine.workers[0].flush()
    update = await mine.next()
    assert update.admitted == Admitted(first.handle, 16)
    assert update.tokens == {0: [5], 1: [7]}
    assert update.logprobs == {1: [TokenLogprobs(2, (7, 8), (-1.0, -0.5))]}
    update = await other.next()
    assert update.tokens == {0: [6]}
    assert update.finished == [Finished(second.handle, 0, "stop", 1, stop_token_id=6)]


async def test_a_refused_request_hears_so(
    engine: ScriptedEngine, connection: EngineConnection
) -> None:
    stream = RequestStream()
    ask = submit(connection)
    connection.submit(ask, stream)
    await engine.frames.get()
    refused = Refused(ask.handle, "queue_full", "", "too many", 2.5)
    engine.workers[0].outbox.put_refused(refused)
    engine.workers[0].flush()
    assert (await stream.next()).refused == refused


async def test_model_and_readiness_are_told(
    engine: ScriptedEngine, connection: EngineConnection
) -> None:
    assert connection.readiness == Readiness(False, "starting")
    changed = asyncio.create_task(connection.readiness_changed())
    await asyncio.sleep(0)
    engine.workers[0].outbox.put_model(MODEL)
    engine.workers[0].outbox.put_readiness(Readiness(True))
    engine.workers[0].flush()
    assert await connection.model() == MODEL
    assert await changed == connection.readiness == Readiness(True)


async def test_calls_are_answered_by_their_id(
    engine: ScriptedEngine, connection: EngineConnection
) -> None:
    metrics = asyncio.create_task(connection.call("metrics"))
    info = asyncio.create_task(connection.call("server_info"))
    found = asyncio.create_task(connection.abort_by_id("r"))
    commands = await engine.frames.get()
    values: dict[str, str | list[object]] = {
        "metrics": "text",
        "server_info": [True, 1, 2, 3, 4, 5, 6, 7],
    }
    for command in reversed(commands):
        value = values[command.method] if isinstance(command, Call) else True
        assert isinstance(command, Call | Abort) and command.call_id is not None
        engine.workers[0].outbox.put_reply(Reply(command.call_id, value))
    engine.workers[0].flush()
    assert await metrics == "text"
    assert await info == ServerInfo(True, 1, 2, 3, 4, 5, 6, 7)
    assert await found is True


async def test_a_worker_that_closes_is_noticed(
    engine: ScriptedEngine, connection: EngineConnection
) -> None:
    await connection.close()
    await engine.gone.wait()
    assert engine.left == engine.workers


async def test_loss_of_the_loop_ends_every_stream_and_call(socket_path: str) -> None:
    engine, server = await start_engine(socket_path)
    connection = await EngineConnection.open(socket_path)
    stream, late = RequestStream(), RequestStream()
    connection.submit(submit(connection), stream)
    call = asyncio.create_task(connection.call("metrics"))
    await engine.frames.get()
    await server.stop()
    assert (await stream.next()).lost
    with pytest.raises(UnavailableError):
        await call
    assert not connection.readiness.ready
    connection.submit(submit(connection), late)
    assert (await late.next()).lost
    with pytest.raises(UnavailableError):
        await connection.call("metrics")
    await connection.close()


async def test_the_connection_comes_back_with_the_loop(socket_path: str) -> None:
    engine, server = await start_engine(socket_path)
    connection = await EngineConnection.open(socket_path)
    await engine.tell(MODEL)
    await connection.model()
    await server.stop()

    engine, server = await start_engine(socket_path)
    await engine.tell(MODEL)
    while not connection.readiness.ready:
        await connection.readiness_changed()
    ask = submit(connection)
    connection.submit(ask, RequestStream())
    assert await engine.frames.get() == [ask]
    await connection.close()
    await server.stop()


async def test_another_model_after_a_restart_is_noticed(socket_path: str) -> None:
    engine, server = await start_engine(socket_path)
    connection = await EngineConnection.open(socket_path)
    await engine.tell(MODEL)
    await connection.model()
    await server.stop()

    engine, server = await start_engine(socket_path)
    await engine.tell(msgspec.structs.replace(MODEL, fingerprint="another"))
    await connection.model_changed()
    assert await connection.model() == MODEL
    await connection.close()
    await server.stop()


async def test_opening_gives_up_when_nothing_listens(socket_path: str) -> None:
    with pytest.raises(UnavailableError):
        await EngineConnection.open(socket_path, timeout_s=0.0)


async def test_a_worker_that_stops_reading_is_dropped_and_nothing_waits_for_it(
    engine: ScriptedEngine, socket_path: str
) -> None:
    _, writer = await asyncio.open_unix_connection(socket_path)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await engine.joined.wait()
    worker = engine.workers[0]
    for step in range(400):
        for handle in range(4096):
            worker.outbox.put_token(handle, 0, step)
        worker.flush()
        assert worker.outbox.num_entries <= MAX_ENTRIES, "memory is bounded"
        await asyncio.sleep(0)
        if engine.gone.is_set():
            break
    await asyncio.wait_for(engine.gone.wait(), 5.0)
    await close(writer)


async def test_a_worker_that_lags_gets_everything_merged(
    engine: ScriptedEngine, connection: EngineConnection
) -> None:
    stream = RequestStream()
    ask = submit(connection)
    connection.submit(ask, stream)
    await engine.frames.get()
    worker = engine.workers[0]
    for step in range(1000):
        worker.outbox.put_token(ask.handle, 0, step)
        worker.flush()
    await worker.flushed()
    tokens: list[int] = []
    while len(tokens) < 1000:
        tokens += (await stream.next()).tokens[0]
    assert tokens == list(range(1000))


async def test_a_flood_of_commands_is_not_read_while_the_loop_is_behind(
    engine: ScriptedEngine, connection: EngineConnection
) -> None:
    engine.may_read.clear()
    connection.abort("a")
    await engine.frames.get()  # the read that was under way
    connection.abort("b")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.frames.get(), 0.05)
    engine.may_read.set()
    assert await engine.frames.get() == [Abort("b")]


async def test_nonsense_drops_that_worker_alone(
    engine: ScriptedEngine, connection: EngineConnection, socket_path: str
) -> None:
    _, writer = await asyncio.open_unix_connection(socket_path)
    writer.write(b"\x04\x00\x00\x00\xc1\xc1\xc1\xc1")
    await engine.gone.wait()
    assert engine.left == engine.workers[1:]
    connection.abort("a")
    assert await engine.frames.get() == [Abort("a")]
    await close(writer)
