"""API requests with everything a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.plan import SamplingParams
from scheduler_service.api.generate_request import GenerateRequest, Prompt
from scheduler_service.api.stop_strings import StopStrings


def make_request(
    *prompts: Prompt,
    stop: Sequence[str] = (),
    eos_token_ids: Sequence[int] = (2,),
    stop_token_ids: Sequence[int] = (),
    min_tokens: int = 0,
    num_logprobs: int | None = None,
    num_prompt_logprobs: int | None = None,
    **changes: Any,
) -> GenerateRequest:
    eos, stops = frozenset(eos_token_ids), frozenset(stop_token_ids)
    fields: dict[str, Any] = {
        "request_id": "r",
        "prompts": prompts or ("Hello",),
        "add_special_tokens": True,
        "params": SamplingParams(
            temperature=0.0,
            min_tokens=min_tokens,
            stop_token_ids=tuple(sorted(eos | stops)),
            num_logprobs=num_logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
        ),
        "has_seed": True,
        "eos_token_ids": eos,
        "stop_token_ids": stops,
        "stop": StopStrings(stop),
    }
    return GenerateRequest(**(fields | changes))
