"""The body of /v1/completions."""

from __future__ import annotations

from typing import Any

from common.errors import InvalidRequestError
from scheduler_service.api.fields import Fields, fail
from scheduler_service.api.generate_request import MAX_TOTAL_CHOICES, GenerateRequest, Prompt
from scheduler_service.api.http.options import (
    check_model_name,
    read_request_id,
    refuse_unsupported,
)
from scheduler_service.api.prompt_ids import check_prompt_ids
from scheduler_service.api.sampling import MAX_LOGPROBS, MAX_MAX_TOKENS, read_sampling
from scheduler_service.api.served_model import ServedModel

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, where the field is absent. null is the rest of the context."""


def read_completion_request(fields: Fields, model: ServedModel) -> GenerateRequest:
    check_model_name(fields, model)
    refuse_unsupported(fields)
    max_tokens = fields.integer(
        "max_tokens", 0, MAX_MAX_TOKENS, remedy="null is as many as the context takes"
    )
    echo = fields.flag("echo") or False
    if max_tokens == 0 and not echo:
        raise InvalidRequestError(
            "max_tokens 0 asks for nothing without echo; send at least 1", field="max_tokens"
        )
    num_logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    sampling = read_sampling(
        fields,
        model,
        max_tokens=max_tokens,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=_num_prompt_logprobs(fields, num_logprobs, echo=echo),
    )
    return GenerateRequest(
        request_id=read_request_id(fields, "cmpl"),
        prompts=_prompts(fields.get("prompt"), model, sampling["n"]),
        add_special_tokens=fields.flag("add_special_tokens") is not False,
        max_tokens=max_tokens,
        default_max_tokens=None if "max_tokens" in fields else DEFAULT_MAX_TOKENS,
        echo=echo,
        **sampling,
    )


def _num_prompt_logprobs(fields: Fields, num_logprobs: int | None, *, echo: bool) -> int | None:
    """An echoed prompt has logprobs like the outputs."""
    asked = fields.integer("prompt_logprobs", 0, MAX_LOGPROBS)
    if asked is not None and fields.get("stream"):
        raise InvalidRequestError(
            "prompt_logprobs is not told in streams; use stream false", field="prompt_logprobs"
        )
    if not echo or num_logprobs is None:
        return asked
    return max(num_logprobs, asked or 0)


def _prompts(value: Any, model: ServedModel, n: int) -> tuple[Prompt, ...]:
    """A text, token ids, or a list of either."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        fail(
            "prompt",
            "a string, a list of token ids or a list of either",
            value,
            remedy="send at least one text or token id",
        )
    if not isinstance(value[0], str | list):
        return (check_prompt_ids(value, model),)
    if len(value) * n > MAX_TOTAL_CHOICES:
        raise InvalidRequestError(
            f"{len(value)} prompts with n = {n} are {len(value) * n} choices;"
            f" at most {MAX_TOTAL_CHOICES} are taken",
            field="prompt",
        )
    return tuple(_listed_prompt(prompt, model) for prompt in value)


def _listed_prompt(prompt: Any, model: ServedModel) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    return check_prompt_ids(prompt, model)
