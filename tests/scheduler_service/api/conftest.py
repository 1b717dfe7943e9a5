"""A served SmolLM2 over a scripted engine connection."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from common.grpc_server import GrpcServer, Link
from common.grpc_server import Service as GrpcService
from proto import inference_pb2_grpc
from scheduler_service.api.http.app import build_app
from scheduler_service.api.served_model import ServedModel, load_served_model
from scheduler_service.api.service import Service
from scheduler_service.api.servicer import InferenceServicer
from scheduler_service.api.template_process import TemplateProcess
from scheduler_service.api.tokenizer import Tokenizer
from scheduler_service.config import SchedulerConfig
from scheduler_service.engine.messages import ModelReady, Submit
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import VOCAB_SIZE, smol_files


def model_ready(**changes: Any) -> ModelReady:
    fields: dict[str, Any] = {
        "name": "smollm2-135m",
        "fingerprint": "f00d",
        "files": smol_files(),
        "max_model_len": 512,
        "vocab_size": VOCAB_SIZE,
        "block_size": 16,
        "num_blocks": 600,
        "dtype": "float32",
        "kv_cache_dtype": "float32",
    }
    return ModelReady(**(fields | changes))


@pytest.fixture(scope="session")
def model() -> ServedModel:
    """Without a chat template, which takes a process; tests of chats start one."""
    files = {name: data for name, data in smol_files().items() if name != "chat_template.jinja"}
    return asyncio.run(load_served_model(model_ready(files=files), None))


@pytest.fixture(scope="session")
def tokenizer(model: ServedModel) -> Tokenizer:
    return model.tokenizer


@pytest_asyncio.fixture
async def chat_model(model: ServedModel) -> AsyncIterator[ServedModel]:
    source = smol_files()["chat_template.jinja"].decode()
    template = await TemplateProcess.start(source, {"bos_token": "<|im_start|>"})
    yield dataclasses.replace(model, template=template)
    await template.close()


class Script:
    """What the fake engine answers: a text, or ids, the same for every choice unless told."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.answer: Callable[[Submit, int], Sequence[int]] = lambda submit, index: [260] * 1000

    def say(self, text: str, *, then: Sequence[int] = ()) -> list[int]:
        ids = [*self._tokenizer._tokenizer.encode(text).ids, *then]
        return self.say_ids(ids)

    def say_ids(self, ids: Sequence[int]) -> list[int]:
        self.answer = lambda submit, index: ids
        return list(ids)

    def __call__(self, submit: Submit, index: int) -> Sequence[int]:
        return self.answer(submit, index)


@pytest.fixture
def script(tokenizer: Tokenizer) -> Script:
    return Script(tokenizer)


@pytest_asyncio.fixture
async def connection(script: Script) -> FakeEngineConnection:
    return FakeEngineConnection(model_ready(), script)


@pytest.fixture
def config() -> SchedulerConfig:
    return SchedulerConfig(executors=("127.0.0.1:1",), port=0, grpc_port=0)


@pytest.fixture
def service(
    config: SchedulerConfig, connection: FakeEngineConnection, model: ServedModel
) -> Service:
    made = Service(config, connection)  # type: ignore[arg-type]
    made.set_model(model)
    return made


@pytest_asyncio.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as made:
        yield made


@pytest_asyncio.fixture
async def stub(service: Service) -> AsyncIterator[inference_pb2_grpc.InferenceStub]:
    register = functools.partial(
        inference_pb2_grpc.add_InferenceServicer_to_server, InferenceServicer(service)
    )
    server = GrpcServer(
        [GrpcService("octavo.inference.v1.Inference", register)],
        host="127.0.0.1",
        port=0,
        link=Link.PUBLIC,
    )
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield inference_pb2_grpc.InferenceStub(channel)
    await server.stop(0)
