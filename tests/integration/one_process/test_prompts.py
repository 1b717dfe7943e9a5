"""Prompts at the edge of the context and lists of prompts, the whole way.

C numbers name acceptance cases.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from executor_service.runner.model_runner import ModelRunner
from proto import inference_pb2 as pb
from scheduler_service.api.generate_request import MAX_TOTAL_CHOICES
from scheduler_service.core.events import SequenceKey
from tests.support.builders import make_limits, make_request, random_ids
from tests.support.in_process_engine import Arrival, InProcessEngine
from tests.support.one_process import HeldRunner, OneProcess, octavo, until
from tests.support.raw_http_client import RawHttpClient
from tests.support.tiny_llama import VOCAB_SIZE

URL = "/v1/completions"


@pytest_asyncio.fixture
async def short(runner: ModelRunner, tmp_path: Path) -> AsyncIterator[OneProcess]:
    """A context of 64 tokens."""
    async with octavo(tmp_path, HeldRunner(runner), max_model_len=64) as started:
        yield started


def _told(response: httpx.Response) -> tuple[list[int], str, dict[str, Any]]:
    """Token ids, finish reason and usage of an answer, streamed or not."""
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        answer = response.json()
        (choice,) = answer["choices"]
        return choice["token_ids"], choice["finish_reason"], answer["usage"]
    *events, done = response.text.split("\n\n")[:-1]
    assert done == "data: [DONE]"
    *chunks, last = (json.loads(event.removeprefix("data: ")) for event in events)
    ids = [token_id for chunk in chunks for token_id in chunk["choices"][0]["token_ids"]]
    return ids, chunks[-1]["choices"][0]["finish_reason"], last["usage"]


_FITS = {
    (62, None): 2,
    (62, 1): 1,
    (62, 2): 2,
    (63, None): 1,
    (63, 1): 1,
    (1, 63): 63,
    (32, 32): 32,
}
_DOES_NOT = {
    (62, 10): ("max_tokens", ("10", "62", "64")),
    (63, 2): ("max_tokens", ("2", "63", "64")),
    (63, 10): ("max_tokens", ("10", "63", "64")),
    **{(64, asked): ("prompt", ("64", "63")) for asked in (None, 1, 2, 10)},
    **{(65, asked): ("prompt", ("65", "64")) for asked in (None, 1, 2, 10)},
    **{(200, asked): ("prompt", ("200", "64")) for asked in (None, 1, 2, 10)},
}


async def test_c74_at_the_edge_of_the_context_nothing_is_cut_in_silence(short: OneProcess) -> None:
    for stream in (False, True):
        extra: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        extra |= {"stream": stream, "ignore_eos": True, "return_token_ids": True}
        for (length, asked), delivered in _FITS.items():
            body = {"prompt": random_ids(length, length, VOCAB_SIZE)} | extra
            body |= {} if asked is None else {"max_tokens": asked}
            ids, reason, usage = _told(await short.http.post(URL, json=body))
            assert (len(ids), reason) == (delivered, "length"), (length, asked)
            assert usage["prompt_tokens"] == length
            assert usage["completion_tokens"] == delivered
        steps = short.runner.num_steps
        for (length, asked), (field, numbers) in _DOES_NOT.items():
            body = {"prompt": random_ids(length, length, VOCAB_SIZE)} | extra
            body |= {} if asked is None else {"max_tokens": asked}
            response = await short.http.post(URL, json=body)
            assert response.status_code == 400, (length, asked)
            error = response.json()["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", field)
            words = error["message"].replace(";", " ").split()
            assert all(number in words for number in numbers), error
            assert not any(word.startswith("-") for word in words)
        assert short.runner.num_steps == steps
    await short.check_clean()


async def test_c76_choices_of_a_list_of_prompts_are_numbered_in_its_order(
    whole: OneProcess,
) -> None:
    prompts: list[Any] = ["one", random_ids(1, 90, VOCAB_SIZE), "three", [7], "five" * 20]
    body = {"prompt": prompts, "n": 2, "max_tokens": 12, "seed": 3, "temperature": 1.5}
    choices = (await whole.complete(**body))["choices"]  # EOS ends some before others
    assert [choice["index"] for choice in choices] == list(range(10))
    alone = [await whole.complete(**body | {"prompt": prompt}) for prompt in prompts]
    expected = [choice["token_ids"] for answer in alone for choice in answer["choices"]]
    assert [choice["token_ids"] for choice in choices] == expected
    assert len({tuple(ids) for ids in expected}) == 10
    await whole.check_clean()


async def test_c76_a_list_that_cannot_be_served_whole_is_not_served_at_all(
    short: OneProcess,
) -> None:
    for prompts in (
        ["a", random_ids(1, 70, VOCAB_SIZE), "b"],
        ["a", "x" * 4000, "b"],
        ["a"] * 2000,
        [[5, 6]] * (MAX_TOTAL_CHOICES // 2 + 1),
    ):
        for stream in (False, True):
            body = {"prompt": prompts, "max_tokens": 2, "n": 2, "stream": stream}
            response = await short.http.post(URL, json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "prompt"
    assert short.runner.num_steps == 0
    await short.check_clean()


async def test_c76_leaving_aborts_every_prompt_of_a_long_list(whole: OneProcess) -> None:
    whole.runner.gate.clear()
    prompts = [[10 + i % 200, 10 + i // 200] for i in range(MAX_TOTAL_CHOICES)]
    client = await RawHttpClient.post(whole.http_address, prompt=prompts, max_tokens=20)
    await until(lambda: len(whole.core.state.sequences) == len(prompts))
    await client.leave()
    await until(lambda: whole.num_useful_aborts == len(prompts))
    whole.runner.gate.set()
    assert len(whole.aborted_ids) == len(set(whole.aborted_ids)) == len(prompts)
    await whole.check_clean()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("shared", [96, 80])
def test_c14_twins_never_see_a_block_that_nobody_has_written(
    runner: ModelRunner, depth: int, shared: int
) -> None:
    """Eight prompts at once; every free block is NaN; the stream breaks between a plan and its
    result, so that what was planned was never written."""
    base = random_ids(14, 96, VOCAB_SIZE)
    prompts = [base[:shared] + random_ids(i, 96 - shared, VOCAB_SIZE) for i in range(8)]
    requests = [make_request(f"r{i}", prompt, max_tokens=8) for i, prompt in enumerate(prompts)]
    limits = {"num_blocks": 100, "vocab_size": VOCAB_SIZE}
    alone = InProcessEngine(make_limits(enable_prefix_caching=False, **limits), runner)
    for request in requests:
        alone.run([Arrival(0, request)])
    engine = InProcessEngine(make_limits(depth=depth, **limits), runner)
    runner.pool.poison(range(100))
    for request in requests:
        engine.add(request)
    for number in range(400):
        if number == 1:
            engine.scheduler.schedule()  # never sent
            engine.break_stream()
        engine.turn()
        runner.pool.poison(engine.scheduler.state.kv.pool.free_blocks)
        if not engine.scheduler.has_work:
            break
    for request in requests:
        key = SequenceKey(request.request_id, 0)
        assert engine.choices[key].token_ids == alone.choices[key].token_ids
    assert engine.scheduler.counters.num_voided_steps > 0


async def test_c80_a_prompt_of_a_million_and_a_half_ids_is_refused_and_harms_nobody(
    whole: OneProcess,
) -> None:
    beside = asyncio.create_task(whole.token_ids(prompt=[5, 6], max_tokens=200, ignore_eos=True))
    few_bytes, many_bytes = [7] * 1_500_000, [100_000] * 1_500_000
    response = await whole.http.post(URL, json={"prompt": few_bytes})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    response = await whole.http.post(URL, json={"prompt": many_bytes})
    assert response.status_code == 413
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in whole.stub.Generate(
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=many_bytes))
        ):
            pass
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "1500000" in (raised.value.details() or "")
    assert len(await beside) == 200
    await whole.check_clean()


async def test_c80_logprobs_of_a_long_prompt_come_whole(whole: OneProcess) -> None:
    """Two thousand positions with twenty candidates each, in one reply over every hop."""
    prompt = random_ids(80, 2001, VOCAB_SIZE)
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt),
        sampling=pb.SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=20),
    )
    told = [
        entry async for reply in whole.stub.Generate(request) for entry in reply.prompt_logprobs
    ]
    assert [len(entry.top_token_ids) for entry in told] == [20] * 2000
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 20}
    (choice,) = (await whole.complete(**body))["choices"]
    rows = zip(choice["prompt_logprobs"][1:], prompt[1:], strict=True)
    shown = [row[str(token)]["logprob"] for row, token in rows]
    assert shown == pytest.approx([entry.logprob for entry in told], abs=1e-6)
    await whole.check_clean()
