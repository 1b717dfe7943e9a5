"""A hundred requests behind one system prompt of 2048 tokens hold it once and compute it once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.integration.services.pool import num_computed_tokens
from tests.support.http_client import HttpClient

_NUM_REQUESTS = 100
_SHARED = 2048
_OWN = 8
_OUTPUTS = 3


def test_the_shared_prompt_is_computed_once(client: HttpClient) -> None:
    shared = [259 + i * 13 % 700 for i in range(_SHARED)]
    prompts = [[*shared, 300 + i, *range(20, 20 + _OWN - 1)] for i in range(_NUM_REQUESTS)]
    before = num_computed_tokens(client)

    def ask(prompt: list[int]) -> int:
        answer = client.complete(prompt=prompt, max_tokens=_OUTPUTS, temperature=0, ignore_eos=True)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    with ThreadPoolExecutor(_NUM_REQUESTS) as threads:
        cached = list(threads.map(ask, prompts))
    assert sorted(cached) == [0, *[_SHARED] * (_NUM_REQUESTS - 1)]
    # The last output of each is handed out, never computed.
    own = _NUM_REQUESTS * (_OWN + _OUTPUTS - 1)
    assert num_computed_tokens(client) - before == _SHARED + own
