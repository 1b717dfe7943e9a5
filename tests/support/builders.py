"""Requests and limits with everything a test does not care about filled in."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable

from common.plan import SamplingParams
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.request import CacheRoot, Request


def make_limits(
    *,
    block_size: int = 16,
    num_blocks: int = 24,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 512,
    depth: int = 1,
    max_decode_stall: float = 2.0,
    enable_prefix_caching: bool = True,
    max_num_waiting: int = 1000,
    vocab_size: int = 1000,
) -> SchedulerLimits:
    """The defaults are a pool so small that a few requests fill it."""
    return SchedulerLimits(
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        depth=depth,
        max_decode_stall=max_decode_stall,
        enable_prefix_caching=enable_prefix_caching,
        max_num_waiting=max_num_waiting,
        vocab_size=vocab_size,
    )


def make_request(
    request_id: str,
    prompt: Iterable[int],
    *,
    max_tokens: int | None = 8,
    n: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    eos_token_ids: Iterable[int] = (),
    stop_token_ids: Iterable[int] = (),
    min_tokens: int = 0,
    num_logprobs: int | None = None,
    num_prompt_logprobs: int | None = None,
    deadline: float | None = None,
    cache_root: CacheRoot | None = None,
) -> Request:
    """Greedy unless a temperature is given. EOS and stop tokens reach the executor's mask."""
    eos, stop = frozenset(eos_token_ids), frozenset(stop_token_ids)
    params = SamplingParams(
        temperature=temperature,
        seed=seed,
        min_tokens=min_tokens,
        stop_token_ids=tuple(sorted(eos | stop)),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )
    return Request(
        request_id=request_id,
        prompt_token_ids=array("i", prompt),
        params=params,
        n=n,
        max_tokens=max_tokens,
        eos_token_ids=eos,
        stop_token_ids=stop,
        deadline=deadline,
        cache_root=cache_root or CacheRoot(),
    )


def random_ids(seed: int, count: int, vocab_size: int = 1000) -> list[int]:
    """Token ids in [10, vocab_size - 10): below and above are left to special ids."""
    rng = random.Random(seed)
    return [rng.randrange(10, vocab_size - 10) for _ in range(count)]
