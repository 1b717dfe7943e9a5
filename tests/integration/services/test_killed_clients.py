"""Kills in the middle of everything, on a pool so small that it preempts all the time.

C numbers name acceptance cases.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.integration.services.pool import num_computed_tokens, num_idle_blocks
from tests.support.http_client import HttpClient
from tests.support.processes import command_line, descendants, eventually, is_gone
from tests.support.services import ROOT, Services

_NUM_BLOCKS = 24
_NUM_STREAMS = 64
_LIMITS = ("--max-num-seqs=8", "--max-num-batched-tokens=64")

_MANY_READERS = """
import asyncio, json, sys

async def read(host, port, prompt):
    reader, writer = await asyncio.open_connection(host, port)
    body = json.dumps({"prompt": prompt, "max_tokens": 64, "ignore_eos": True, "temperature": 0,
                       "stream": True}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: %d\\r\\n\\r\\n%b"
                 % (len(body), body))
    while await reader.read(65536):
        pass

async def main():
    host, port = sys.argv[1].removeprefix("http://").split(":")
    prompts = json.loads(sys.stdin.readline())
    await asyncio.gather(*(read(host, int(port), prompt) for prompt in prompts))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def crowded() -> Iterator[Services]:
    with Services.shadow(
        executor=(f"--num-blocks={_NUM_BLOCKS}", "--max-model-len=512", "--latency-ms=1", *_LIMITS),
        scheduler=(*_LIMITS, "--check-invariants"),
    ) as started:
        yield started


@pytest.fixture
def client(crowded: Services) -> Iterator[HttpClient]:
    with HttpClient(crowded.http) as connected:
        yield connected


def _prompts(seed: int, count: int, lengths: tuple[int, int]) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(10, 990) for _ in range(rng.randint(*lengths))] for _ in range(count)]


def _pids(services: Services) -> set[int]:
    scheduler, executor = services.scheduler.process.pid, services.executors[0].process.pid
    return {scheduler, executor, *descendants(scheduler)}


def _num_live(client: HttpClient) -> int:
    samples = client.metrics()
    return int(samples["octavo_num_requests_running"] + samples["octavo_num_requests_waiting"])


def _assert_clean(client: HttpClient) -> None:
    assert eventually(lambda: _num_live(client) == 0, patience_s=2.0)
    assert eventually(lambda: num_idle_blocks(client) == _NUM_BLOCKS, patience_s=2.0)
    computed = num_computed_tokens(client)
    client.token_ids(prompt=[70], max_tokens=2, temperature=0, ignore_eos=True)
    assert num_computed_tokens(client) == computed + 2, "something else still runs"


def test_c05_a_client_killed_with_64_streams_on_a_saturated_pool_leaves_nothing(
    crowded: Services, client: HttpClient
) -> None:
    pids = _pids(crowded)
    fresh = _prompts(500, 8, (50, 50))
    body: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    alone = [client.token_ids(prompt=prompt, cache_salt="alone", **body) for prompt in fresh]
    for round_ in range(5):
        preemptions = client.metrics()["octavo_num_preemptions_total"]
        process = subprocess.Popen(
            [sys.executable, "-c", _MANY_READERS, crowded.http],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        with process:
            assert process.stdin is not None
            process.stdin.write(f"{_prompts(round_, _NUM_STREAMS, (100, 150))}\n")
            process.stdin.flush()
            assert eventually(
                lambda before=preemptions: (
                    client.metrics()["octavo_num_preemptions_total"] >= before + 3
                )
            )
            assert _num_live(client) > 8, "the queue was empty already"
            process.kill()
        _assert_clean(client)
        assert _pids(crowded) == pids
    with ThreadPoolExecutor(8) as threads:
        together = threads.map(lambda prompt: client.token_ids(prompt=prompt, **body), fresh)
        assert list(together) == alone


def _is_ready(services: Services) -> bool:
    try:
        return httpx.get(f"{services.http}/health/ready", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_c35_killing_the_worker_that_speaks_http_frees_what_its_clients_held(
    crowded: Services, client: HttpClient
) -> None:
    stream = client.stream(prompt=[70] * 20, max_tokens=300, temperature=0, ignore_eos=True)
    next(stream)
    (worker,) = (
        pid
        for pid in descendants(crowded.scheduler.process.pid)
        if "--role=api" in command_line(pid)
    )
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(httpx.TransportError):
        list(stream)
    assert eventually(lambda: is_gone(worker))
    assert eventually(lambda: _is_ready(crowded), patience_s=30)
    with HttpClient(crowded.http) as again:
        _assert_clean(again)
        assert again.metrics()['octavo_request_success_total{finished_reason="abort"}'] >= 1
