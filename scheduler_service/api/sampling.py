"""The sampling fields, which HTTP and gRPC share by name: ranges, defaults, and what is derived.

A field that is absent takes the model's generation_config, then the neutral value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from common.errors import InvalidRequestError
from common.plan import SamplingParams
from scheduler_service.api.fields import (
    Fields,
    check_number,
    check_string,
    check_token_ids,
    fail,
)
from scheduler_service.api.generate_request import MAX_CHOICES
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.stop_strings import StopStrings

MAX_LOGPROBS = 20
MAX_MAX_TOKENS = 2**31 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_BIASED_TOKENS = 1024
MAX_CACHE_SALT_BYTES = 256
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.001, 86_400.0

_MAX_INT64 = 2**63 - 1
_LEAST_TOP_P = 1e-30
"""It keeps one token, as all below it do; executors get it as float32, where those may be 0."""


class SamplingFields(TypedDict):
    """The keyword arguments of GenerateRequest that sampling fields decide."""

    params: SamplingParams
    has_seed: bool
    n: int
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    stop: StopStrings
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    timeout_s: float | None
    priority: int
    cache_salt: str


def read_sampling(
    fields: Fields,
    model: ServedModel,
    *,
    max_tokens: int | None,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None,
) -> SamplingFields:
    """InvalidRequestError names the field at fault."""
    eos = frozenset() if fields.flag("ignore_eos") else model.eos_token_ids
    stop_ids = _stop_token_ids(fields, model)
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    return SamplingFields(
        params=SamplingParams(
            **_filters(fields, model),
            **_penalties(fields, model),
            seed=(seed or 0) % 2**64,
            logit_bias=_logit_bias(fields, model),
            min_tokens=_min_tokens(fields, model, max_tokens),
            stop_token_ids=tuple(sorted(eos | stop_ids)),
            num_logprobs=num_logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
        ),
        has_seed=seed is not None,
        n=_number_of_choices(fields),
        eos_token_ids=eos,
        stop_token_ids=stop_ids,
        stop=_stop_strings(fields),
        include_stop_str_in_output=fields.flag("include_stop_str_in_output") or False,
        skip_special_tokens=fields.flag("skip_special_tokens") is not False,
        timeout_s=fields.number("timeout", MIN_TIMEOUT_S, MAX_TIMEOUT_S),
        priority=_priority(fields),
        cache_salt=_cache_salt(fields),
    )


def _filters(fields: Fields, model: ServedModel) -> dict[str, Any]:
    defaults = model.sampling_defaults
    top_k = fields.integer("top_k", -1, _MAX_INT64)
    if top_k is None:
        top_k = int(defaults.get("top_k", 0))
    return {
        "temperature": _or_default(
            fields.number("temperature", 0, 100), defaults, "temperature", 1
        ),
        # -1 is off, and so is what leaves every token in.
        "top_k": top_k if 0 < top_k < model.vocab_size else 0,
        "top_p": _or_default(_top_p(fields), defaults, "top_p", 1),
        "min_p": _or_default(fields.number("min_p", 0, 1), defaults, "min_p", 0),
    }


def _top_p(fields: Fields) -> float | None:
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        fail("top_p", "above 0 (temperature 0 is greedy)", top_p)
    return None if top_p is None else max(top_p, _LEAST_TOP_P)


def _penalties(fields: Fields, model: ServedModel) -> dict[str, Any]:
    return {
        "repetition_penalty": _or_default(
            fields.number("repetition_penalty", 1e-3, 1e3),
            model.sampling_defaults,
            "repetition_penalty",
            1,
        ),
        "presence_penalty": fields.number("presence_penalty", -2, 2) or 0.0,
        "frequency_penalty": fields.number("frequency_penalty", -2, 2) or 0.0,
    }


def _or_default(
    value: float | None, defaults: Mapping[str, float | int], name: str, neutral: float
) -> float:
    return float(defaults.get(name, neutral)) if value is None else value


def _number_of_choices(fields: Fields) -> int:
    n = fields.integer("n", 1, MAX_CHOICES) or 1
    best_of = fields.integer("best_of", 1, MAX_CHOICES)
    if best_of not in (None, n):
        raise InvalidRequestError(
            f"best_of {best_of} is not supported: leave it out, or make it equal to n ({n})",
            field="best_of",
        )
    return n


def _min_tokens(fields: Fields, model: ServedModel, max_tokens: int | None) -> int:
    min_tokens = fields.integer("min_tokens", 0, model.max_model_len) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens {min_tokens} is above max_tokens {max_tokens}", field="min_tokens"
        )
    return min_tokens


def _stop_token_ids(fields: Fields, model: ServedModel) -> frozenset[int]:
    if not fields.has("stop_token_ids"):
        return frozenset()
    ids = check_token_ids(
        fields.get("stop_token_ids"),
        model.vocab_size,
        field="stop_token_ids",
        max_count=MAX_STOP_TOKEN_IDS,
    )
    return frozenset(ids)


def _stop_strings(fields: Fields) -> StopStrings:
    value = fields.get("stop")
    if value is None:
        return StopStrings(())
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple):
        fail("stop", "a string or a list of strings", value)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"stop has {len(strings)} strings; at most {MAX_STOP_STRINGS} are taken", field="stop"
        )
    for string in strings:
        if not check_string(string, MAX_STOP_STRING_BYTES, field="stop"):
            fail("stop", "strings of at least one character", string)
    return StopStrings(strings)


def _priority(fields: Fields) -> int:
    """No policy looks at it so far (core/policy.py), so only what every request has is taken."""
    priority = fields.integer("priority", -(2**31), 2**31 - 1) or 0
    if priority:
        raise InvalidRequestError(
            f"priority {priority} is not supported: requests are served first come, first served;"
            " leave it out, or send 0",
            field="priority",
        )
    return priority


def _cache_salt(fields: Fields) -> str:
    """Empty: none was sent. One that is sent empty would isolate nothing, whatever was meant."""
    salt = fields.string("cache_salt", max_bytes=MAX_CACHE_SALT_BYTES)
    if salt == "":
        fail("cache_salt", "a string of at least one character", salt)
    return salt or ""


def _logit_bias(fields: Fields, model: ServedModel) -> tuple[tuple[int, float], ...]:
    value = fields.get("logit_bias")
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        fail("logit_bias", "an object of token ids and numbers", value)
    if len(value) > MAX_BIASED_TOKENS:
        raise InvalidRequestError(
            f"logit_bias has {len(value)} entries; at most {MAX_BIASED_TOKENS} are taken",
            field="logit_bias",
        )
    bias = {
        _token_id_of_key(key, model): check_number(number, -100, 100, field="logit_bias")
        for key, number in value.items()
    }
    return tuple(sorted(bias.items()))


def _token_id_of_key(key: Any, model: ServedModel) -> int:
    """JSON spells ids as strings."""
    is_number = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12
    token_id = int(key) if is_number else key
    if not isinstance(token_id, int) or not 0 <= token_id < model.vocab_size:
        fail(
            "logit_bias",
            f"an object whose keys are token ids from 0 to {model.vocab_size - 1}",
            key,
            remedy="tokenize the text to learn its ids",
        )
    return token_id
