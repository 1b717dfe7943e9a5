"""The gRPC Inference service over a real channel and a scripted engine."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import grpc
import pytest

from proto import inference_pb2 as pb
from proto import inference_pb2_grpc
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service
from scheduler_service.api.servicer import InferenceServicer
from scheduler_service.api.tokenizer import Tokenizer
from scheduler_service.config import SchedulerConfig
from tests.scheduler_service.api.conftest import Script
from tests.scheduler_service.api.grpc_calls import ask, told
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import IM_END, VOCAB_SIZE

TEXT = " Paris 🗼 is the capital of France."


async def test_a_generation_starts_tells_and_ends(
    stub: inference_pb2_grpc.InferenceStub, script: Script, connection: FakeEngineConnection
) -> None:
    ids = script.say(TEXT, then=[IM_END])
    connection._num_cached_tokens = 16
    answer = await told(stub, ask(_n=2, seed=7, _request_id="mine"))
    assert answer.request_id == "mine"
    assert answer.started == pb.Started(
        seed=7, num_prompt_tokens=1, num_cached_tokens=16, prompt_token_ids=[19556]
    )
    assert answer.texts == {0: TEXT, 1: TEXT}
    assert answer.ids == {0: ids, 1: ids}
    for index in (0, 1):
        assert answer.finished[index] == pb.Finished(
            index=index, reason="stop", num_output_tokens=len(ids)
        )
    assert answer.usage == pb.Usage(
        num_prompt_tokens=1, num_output_tokens=2 * len(ids), num_cached_tokens=16
    )


async def test_an_unseeded_request_is_told_its_seed_and_id(
    stub: inference_pb2_grpc.InferenceStub, connection: FakeEngineConnection
) -> None:
    answer = await told(stub, ask(max_tokens=1))
    assert answer.started.seed == connection.submits[0].params.seed
    assert answer.request_id == connection.submits[0].request_id


async def test_token_ids_alone_on_demand(
    stub: inference_pb2_grpc.InferenceStub, script: Script
) -> None:
    ids = script.say(TEXT, then=[IM_END])
    answer = await told(stub, ask(_return_text=False))
    assert answer.ids == {0: ids}
    assert answer.texts == {0: ""}


async def test_a_stop_string_is_named(
    stub: inference_pb2_grpc.InferenceStub, script: Script
) -> None:
    script.say(TEXT)
    answer = await told(stub, ask(stop=["capital"]))
    assert answer.texts[0] == " Paris 🗼 is the "
    assert answer.finished[0].stop_reason == "capital"
    assert not answer.finished[0].HasField("stop_token_id")
    assert answer.finished[0].num_output_tokens == len(answer.ids[0])


async def test_a_stop_token_is_named_even_if_it_is_the_first(
    stub: inference_pb2_grpc.InferenceStub, script: Script
) -> None:
    script.say_ids([300, 0])
    answer = await told(stub, ask(stop_token_ids=[0]))
    assert answer.finished[0].HasField("stop_token_id")
    assert answer.finished[0].stop_token_id == 0
    assert answer.texts[0] == "om"


async def test_logprobs_come_one_per_token(
    stub: inference_pb2_grpc.InferenceStub, script: Script
) -> None:
    ids = script.say(TEXT)
    answer = await told(stub, ask(logprobs=2))
    assert len(answer.logprobs[0]) == len(ids)
    entry = answer.logprobs[0][0]
    assert (entry.logprob, entry.rank) == (-9.0, 3)
    assert list(entry.top_logprobs) == [-0.5, -0.75]
    assert list(entry.top_token_ids) == [100, 101]


async def test_prompt_logprobs_come_once_from_the_second_token_on(
    stub: inference_pb2_grpc.InferenceStub,
) -> None:
    prompt = pb.TokenIds(ids=[300, 301, 302])
    request = ask(_token_ids=prompt, prompt_logprobs=1, max_tokens=2)
    replies = [reply async for reply in stub.Generate(request)]
    (with_logprobs,) = [reply for reply in replies if reply.prompt_logprobs]
    assert [entry.logprob for entry in with_logprobs.prompt_logprobs] == [-9.0, -9.0]
    scored = [
        r async for r in stub.Generate(ask(_token_ids=prompt, prompt_logprobs=1, max_tokens=0))
    ]
    assert sum(len(reply.prompt_logprobs) for reply in scored) == 2
    assert not any(reply.deltas for reply in scored)
    assert scored[-1].usage.num_output_tokens == 0


async def test_an_echo_comes_first(stub: inference_pb2_grpc.InferenceStub, script: Script) -> None:
    script.say(TEXT)
    answer = await told(stub, ask("Hello", _echo_prompt=True, _n=2))
    assert answer.texts == {0: "Hello" + TEXT, 1: "Hello" + TEXT}
    prompt = pb.TokenIds(ids=[300, 301])
    answer = await told(stub, ask(_token_ids=prompt, _echo_prompt=True, max_tokens=0))
    assert answer.texts == {0: "omil"}


async def test_a_resume_sends_only_what_is_new(
    stub: inference_pb2_grpc.InferenceStub, script: Script, connection: FakeEngineConnection
) -> None:
    ids = script.say(TEXT, then=[IM_END])
    whole = await told(stub, ask(seed=5))
    for cut in (0, 1, 3, 5):
        outputs = [pb.PriorOutput(index=0, token_ids=ids[:cut])]
        resumed = await told(stub, ask(seed=5, _prior_output=outputs))
        assert ids[:cut] + resumed.ids.get(0, []) == ids
        assert whole.texts[0].endswith(resumed.texts[0])
        assert resumed.finished[0] == whole.finished[0]
        assert resumed.usage == whole.usage


async def test_a_resume_skips_choices_that_had_ended(
    stub: inference_pb2_grpc.InferenceStub, script: Script, connection: FakeEngineConnection
) -> None:
    ids = script.say(TEXT, then=[IM_END])
    outputs = [
        pb.PriorOutput(index=0, token_ids=ids, finished=True),
        pb.PriorOutput(index=2, token_ids=ids[:2]),
    ]
    answer = await told(stub, ask(_n=3, seed=5, _prior_output=outputs))
    assert sorted(answer.finished) == [1, 2]
    (submit,) = connection.submits
    assert submit.prior_outputs == ((1, b""), (2, array("i", ids[:2]).tobytes()))
    outputs = [pb.PriorOutput(index=0, token_ids=ids, finished=True)]
    answer = await told(stub, ask(seed=5, _prior_output=outputs))
    assert answer.finished == {}
    assert answer.usage.num_output_tokens == len(ids)
    assert len(connection.submits) == 1


async def test_abort_says_whether_it_found_any(
    stub: inference_pb2_grpc.InferenceStub, connection: FakeEngineConnection
) -> None:
    connection.may_step.clear()
    call = stub.Generate(ask(_request_id="mine"))
    await call.read()
    assert (await stub.Abort(pb.AbortRequest(request_id="mine"))).found
    assert not (await stub.Abort(pb.AbortRequest(request_id="mine"))).found
    assert (await call.read()).finished[0].reason == "abort"


async def test_the_model_and_the_server_are_described(
    stub: inference_pb2_grpc.InferenceStub,
) -> None:
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.model == "smollm2-135m"
    assert list(info.eos_token_ids) == [IM_END]
    assert (info.max_model_len, info.vocab_size) == (512, VOCAB_SIZE)
    assert not info.has_chat_template
    server = await stub.GetServerInfo(pb.GetServerInfoRequest())
    assert server.ready
    assert server.version
    assert (server.num_blocks, server.num_free_blocks, server.block_size) == (600, 590, 16)
    assert (server.max_num_seqs, server.max_num_batched_tokens) == (8, 64)


async def test_tokens_there_and_back(
    stub: inference_pb2_grpc.InferenceStub, tokenizer: Tokenizer
) -> None:
    answer = await stub.Tokenize(pb.TokenizeRequest(text=TEXT))
    assert list(answer.token_ids) == await tokenizer.encode(TEXT, add_special_tokens=True)
    assert answer.max_model_len == 512
    ids = [1, *answer.token_ids]
    assert (await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))).text == TEXT
    shown = pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=False)
    assert (await stub.Detokenize(shown)).text == "<|im_start|>" + TEXT
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Detokenize(pb.DetokenizeRequest(token_ids=[VOCAB_SIZE]))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_messages_go_through_the_template(
    config: SchedulerConfig,
    connection: FakeEngineConnection,
    chat_model: ServedModel,
    service: Service,
    stub: inference_pb2_grpc.InferenceStub,
) -> None:
    service.set_model(chat_model)
    messages = pb.Messages(messages=[pb.Message(role="user", content="Hi")])
    tokenized = await stub.Tokenize(pb.TokenizeRequest(messages=messages))
    answer = await told(stub, ask(_messages=messages, max_tokens=1))
    assert answer.started.prompt_token_ids == tokenized.token_ids
    text = chat_model.tokenizer.decode(list(tokenized.token_ids), skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


async def test_nothing_is_served_before_the_model_is_known(
    config: SchedulerConfig, connection: FakeEngineConnection, service: Service
) -> None:
    servicer = InferenceServicer(Service(config, connection))  # type: ignore[arg-type]

    class Context:
        async def abort(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
            raise asyncio.CancelledError(code)

        def time_remaining(self) -> None:
            return None

    for call in (
        servicer.GetModelInfo(pb.GetModelInfoRequest(), Context()),  # type: ignore[arg-type]
        anext(servicer.Generate(ask(), Context())),  # type: ignore[arg-type]
    ):
        with pytest.raises(asyncio.CancelledError) as raised:
            await call
        assert raised.value.args == (grpc.StatusCode.UNAVAILABLE,)
