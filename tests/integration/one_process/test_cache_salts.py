"""Prefix caches under salts, the whole way: equal salts share, others never."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proto import inference_pb2 as pb
from tests.support.builders import random_ids
from tests.support.one_process import OneProcess, until
from tests.support.tiny_llama import VOCAB_SIZE

PROMPT = random_ids(1, 40, VOCAB_SIZE)
"""Two whole blocks of 16 and a rest."""
SALTS: tuple[dict[str, Any], ...] = ({}, {"cache_salt": "a"}, {"cache_salt": "b"})


async def _num_cached(whole: OneProcess, **salt: str) -> int:
    answer = await whole.complete(prompt=PROMPT, max_tokens=1, **salt)
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_prefix_is_found_under_its_own_salt_alone(whole: OneProcess) -> None:
    for salt in SALTS:
        assert [await _num_cached(whole, **salt) for _ in range(2)] == [0, 32]
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT), sampling=pb.SamplingParams(max_tokens=1)
    )
    for salt, num_cached in (("", 32), ("b", 32), ("c", 0)):
        request.cache_salt = salt
        replies = [reply async for reply in whole.stub.Generate(request)]
        assert replies[0].started.num_cached_tokens == num_cached, salt
    await whole.check_clean()


async def test_of_a_wave_each_salt_computes_the_prefix_once_for_itself(whole: OneProcess) -> None:
    whole.runner.gate.clear()
    asked = [asyncio.create_task(_num_cached(whole, **salt)) for salt in (*SALTS, *SALTS)]
    await until(lambda: len(whole.core.state.requests) == len(asked))
    whole.runner.gate.set()
    assert sorted(await asyncio.gather(*asked)) == [0, 0, 0, 32, 32, 32]
    await whole.check_clean()


async def test_a_reset_forgets_the_prefixes_of_every_salt(whole: OneProcess) -> None:
    for salt in SALTS:
        await _num_cached(whole, **salt)
    assert whole.core.reset_prefix_cache()
    assert whole.core.state.kv.tree.roots() == []
    for salt in SALTS:
        assert await _num_cached(whole, **salt) == 0


@pytest.mark.parametrize("salt", ["", 5])
async def test_a_salt_that_isolates_nothing_is_refused(whole: OneProcess, salt: Any) -> None:
    body = {"prompt": PROMPT, "cache_salt": salt}
    response = await whole.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "cache_salt"
    assert "string" in response.json()["error"]["message"]
