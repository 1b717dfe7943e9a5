"""The gRPC Inference service when a call is refused, cancelled, late or fails."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from common.protocol import FIELD_METADATA, RETRY_AFTER_METADATA
from proto import inference_pb2 as pb
from proto import inference_pb2_grpc
from scheduler_service.engine.messages import Refused
from tests.scheduler_service.api.grpc_calls import ask, told, trailing, until
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import VOCAB_SIZE

BAD: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": -1.0}),
    ("temperature", {"temperature": float("nan")}),
    ("top_p", {"top_p": 0.0}),
    ("top_k", {"top_k": -2}),
    ("n", {"_n": 129}),
    ("n", {"_n": 10**9}),
    ("priority", {"_priority": 1}),
    ("stop", {"stop": [""]}),
    ("stop", {"stop": ["a"] * 17}),
    ("stop_token_ids", {"stop_token_ids": [VOCAB_SIZE + 5]}),
    ("logit_bias", {"logit_bias": {VOCAB_SIZE: 1.0}}),
    ("logit_bias", {"logit_bias": {1: 200.0}}),
    ("logprobs", {"logprobs": 21}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 600}),
    ("min_tokens", {"min_tokens": 51}),
    ("token_ids", {"_token_ids": pb.TokenIds(ids=[VOCAB_SIZE])}),
    ("token_ids", {"_token_ids": pb.TokenIds()}),
    ("token_ids", {"_token_ids": pb.TokenIds(ids=[300] * 512)}),
    ("messages", {"_messages": pb.Messages()}),
    ("messages", {"_messages": pb.Messages(messages=[pb.Message(content="x")])}),
    ("request_id", {"_request_id": "x" * 129}),
    ("request_id", {"_request_id": "a\nb"}),
    ("seed", {"_prior_output": [pb.PriorOutput(index=0)]}),
    ("prior_output", {"_prior_output": [pb.PriorOutput(index=1)], "seed": 1}),
    ("prior_output", {"_prior_output": [pb.PriorOutput(index=0)] * 2, "seed": 1}),
    (
        "prior_output",
        {"_prior_output": [pb.PriorOutput(index=0, token_ids=[VOCAB_SIZE])], "seed": 1},
    ),
]


@pytest.mark.parametrize(("field", "asked"), BAD, ids=lambda value: str(value)[:40])
async def test_a_bad_field_is_named_and_nothing_is_run(
    stub: inference_pb2_grpc.InferenceStub,
    connection: FakeEngineConnection,
    field: str,
    asked: dict[str, Any],
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await told(stub, ask(**asked))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in (raised.value.details() or "")
    assert trailing(raised.value)[FIELD_METADATA] == field
    assert connection.submits == []


async def test_no_prompt_is_refused(stub: inference_pb2_grpc.InferenceStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await told(stub, pb.GenerateRequest())
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await told(stub, ask(_model="other"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (Refused(1, "queue_full", "", "full", 2.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (Refused(1, "unavailable", "", "none"), grpc.StatusCode.UNAVAILABLE),
        (Refused(1, "invalid", "request_id", "taken"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_refusal_is_a_status(
    stub: inference_pb2_grpc.InferenceStub,
    connection: FakeEngineConnection,
    refused: Refused,
    status: grpc.StatusCode,
) -> None:
    connection.refusal = lambda submit: refused
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await told(stub, ask())
    assert raised.value.code() is status
    assert trailing(raised.value).get(RETRY_AFTER_METADATA) == (
        "2500" if refused.kind == "queue_full" else None
    )


async def test_cancelling_aborts_once(
    stub: inference_pb2_grpc.InferenceStub, connection: FakeEngineConnection
) -> None:
    connection.may_step.clear()
    call = stub.Generate(ask(_request_id="gone"))
    assert (await call.read()).HasField("started")
    call.cancel()
    await until(lambda: connection.aborts == ["gone"])
    assert connection.num_live == 0
    assert connection.useless_aborts == []


async def test_cancelling_aborts_what_is_still_queued(
    stub: inference_pb2_grpc.InferenceStub, connection: FakeEngineConnection
) -> None:
    connection.may_admit.clear()
    call = stub.Generate(ask())
    reading = asyncio.ensure_future(call.read())
    await until(lambda: connection.num_live == 1)
    call.cancel()
    await until(lambda: connection.num_live == 0)
    assert len(connection.aborts) == 1
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_deadline_reaches_the_loop(
    stub: inference_pb2_grpc.InferenceStub, connection: FakeEngineConnection
) -> None:
    [reply async for reply in stub.Generate(ask(max_tokens=1), timeout=60)]
    [reply async for reply in stub.Generate(ask(max_tokens=1, _timeout_ms=5000), timeout=60)]
    [reply async for reply in stub.Generate(ask(max_tokens=1))]
    timeouts = [submit.timeout_s for submit in connection.submits]
    assert timeouts[0] is not None
    assert timeouts[1] is not None
    assert 50 < timeouts[0] <= 61  # the wire carries three digits, rounded up
    assert 4 < timeouts[1] <= 5
    assert timeouts[2] is None
    connection.expires_at = 0
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await told(stub, ask())
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_call_past_its_deadline_is_aborted(
    stub: inference_pb2_grpc.InferenceStub, connection: FakeEngineConnection
) -> None:
    connection.may_step.clear()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        [reply async for reply in stub.Generate(ask(), timeout=0.3)]
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: connection.num_live == 0)
    assert len(connection.aborts) == 1


async def test_a_failed_choice_says_why_and_fails_alone(
    stub: inference_pb2_grpc.InferenceStub, connection: FakeEngineConnection
) -> None:
    connection.error_at = 2
    answer = await told(stub, ask())
    assert answer.finished[0] == pb.Finished(
        index=0, reason="error", num_output_tokens=2, message="the executor said no"
    )


async def test_the_loss_of_the_loop_is_unavailable(
    stub: inference_pb2_grpc.InferenceStub, connection: FakeEngineConnection
) -> None:
    connection.may_step.clear()
    call = stub.Generate(ask())
    await call.read()
    connection.lose("gone")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        while await call.read() is not grpc.aio.EOF:
            pass
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
