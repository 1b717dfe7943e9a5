"""inference.proto's GenerateRequest to ours. Field names in errors are the proto's."""

from __future__ import annotations

import secrets
from array import array
from typing import Any

from common.errors import InvalidRequestError, NotFoundError
from common.plan import TOKEN_TYPECODE
from proto import inference_pb2 as pb
from scheduler_service.api.chat_messages import check_messages, render_messages
from scheduler_service.api.fields import Fields, check_token_ids
from scheduler_service.api.generate_request import (
    FinishedOutput,
    GenerateRequest,
    PriorOutputs,
    Prompt,
)
from scheduler_service.api.prompt_ids import check_prompt_ids
from scheduler_service.api.request_id import is_acceptable_id
from scheduler_service.api.sampling import (
    MAX_LOGPROBS,
    MAX_MAX_TOKENS,
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    read_sampling,
)
from scheduler_service.api.served_model import ServedModel

_OPTIONAL = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "skip_special_tokens",
    "logprobs",
    "prompt_logprobs",
)
_REQUIRED = ("min_tokens", "ignore_eos", "include_stop_str_in_output")


async def read_request(
    message: pb.GenerateRequest, model: ServedModel, *, call_timeout_s: float | None
) -> GenerateRequest:
    """`call_timeout_s` is what the call itself has left."""
    check_model(message.model, model)
    fields = Fields(_values(message, call_timeout_s))
    max_tokens = fields.integer("max_tokens", 0, MAX_MAX_TOKENS)
    num_prompt_logprobs = fields.integer("prompt_logprobs", 0, MAX_LOGPROBS)
    sampling = read_sampling(
        fields,
        model,
        max_tokens=max_tokens,
        num_logprobs=fields.integer("logprobs", 0, MAX_LOGPROBS),
        num_prompt_logprobs=num_prompt_logprobs,
    )
    if max_tokens == 0 and num_prompt_logprobs is None and not message.echo_prompt:
        raise InvalidRequestError(
            "max_tokens 0 asks for nothing without echo_prompt or prompt_logprobs",
            field="max_tokens",
        )
    prior = _prior_outputs(message, model, sampling["n"])
    if prior is not None and not sampling["has_seed"]:
        raise InvalidRequestError(
            "prior_output needs the seed that the first try was told in `started`", field="seed"
        )
    prompt, add_special_tokens = await _prompt(message, model)
    return GenerateRequest(
        request_id=_request_id(message),
        prompts=(prompt,),
        add_special_tokens=add_special_tokens,
        max_tokens=max_tokens,
        return_text=message.return_text,
        echo=message.echo_prompt,
        prior=prior,
        written_names={"prompt": message.WhichOneof("prompt") or "prompt"},
        **sampling,
    )


def check_model(name: str, model: ServedModel) -> None:
    if name not in ("", model.name):
        raise NotFoundError(f"the model {name[:100]!r} is not served here; {model.name!r} is")


def _values(message: pb.GenerateRequest, call_timeout_s: float | None) -> dict[str, Any]:
    """The sampling fields as HTTP spells them; unset is absent."""
    sampling = message.sampling
    values: dict[str, Any] = {
        name: getattr(sampling, name) for name in _OPTIONAL if sampling.HasField(name)
    }
    values |= {name: getattr(sampling, name) for name in _REQUIRED}
    values |= {
        "n": message.n or None,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "logit_bias": dict(sampling.logit_bias),
        "priority": message.priority,
        "cache_salt": message.cache_salt or None,
        "timeout": _timeout_s(message.timeout_ms, call_timeout_s),
    }
    return values


def _timeout_s(timeout_ms: int, call_timeout_s: float | None) -> float | None:
    limits = [limit for limit in (timeout_ms / 1000 or None, call_timeout_s) if limit is not None]
    return max(MIN_TIMEOUT_S, min(*limits, MAX_TIMEOUT_S)) if limits else None


def _request_id(message: pb.GenerateRequest) -> str:
    if not message.request_id:
        return f"gen-{secrets.token_hex(12)}"
    if not is_acceptable_id(message.request_id):
        raise InvalidRequestError(
            "request_id must be 1 to 128 printable ASCII characters", field="request_id"
        )
    return message.request_id


async def _prompt(message: pb.GenerateRequest, model: ServedModel) -> tuple[Prompt, bool]:
    """The prompt, and whether special tokens are to be added."""
    match message.WhichOneof("prompt"):
        case "text":
            return message.text, True
        case "token_ids":
            ids = list(message.token_ids.ids)
            return check_prompt_ids(ids, model, field="token_ids"), False
        case "messages":
            return await render_messages(messages_of(message.messages), model), False
        case _:
            raise InvalidRequestError("no prompt; set text, token_ids or messages", field="prompt")


def messages_of(messages: pb.Messages) -> list[dict[str, Any]]:
    return check_messages([{"role": m.role, "content": m.content} for m in messages.messages])


def _prior_outputs(message: pb.GenerateRequest, model: ServedModel, n: int) -> PriorOutputs | None:
    """Choices that are not named have no outputs yet."""
    if not message.prior_output:
        return None
    running = {j: array(TOKEN_TYPECODE) for j in range(n)}
    finished = []
    named: set[int] = set()
    for output in message.prior_output:
        if output.index in named or output.index >= n:
            raise InvalidRequestError(
                f"prior_output names choice {output.index} twice or beyond n = {n}",
                field="prior_output",
            )
        named.add(output.index)
        ids = check_token_ids(list(output.token_ids), model.vocab_size, field="prior_output")
        if output.finished:
            del running[output.index]
            finished.append(FinishedOutput(index=output.index, num_tokens=len(ids)))
        else:
            running[output.index].extend(ids)
    return PriorOutputs(running=running, finished=tuple(finished))
