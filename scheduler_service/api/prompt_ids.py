"""Prompts that come as token ids."""

from __future__ import annotations

from typing import Any, NoReturn

from common.errors import InvalidRequestError
from scheduler_service.api.fields import check_token_ids
from scheduler_service.api.served_model import ServedModel


def check_prompt_ids(value: Any, model: ServedModel, *, field: str = "prompt") -> list[int]:
    """Ids of the vocabulary that leave room for an output. A hopeless length is not looked into."""
    if isinstance(value, list) and len(value) >= model.max_model_len:
        fail_length(str(len(value)), model, field=field)
    return check_token_ids(value, model.vocab_size, field=field)


def fail_length(num_tokens: str, model: ServedModel, *, field: str = "prompt") -> NoReturn:
    raise InvalidRequestError(
        f"the prompt has {num_tokens} tokens; the context of {model.max_model_len} takes at most"
        f" {model.max_model_len - 1} and one output",
        field=field,
    )
