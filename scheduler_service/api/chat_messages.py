"""Chat messages: what they may hold, and the prompt the model's template makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.errors import InvalidRequestError
from scheduler_service.api.fields import fail
from scheduler_service.api.served_model import ServedModel

MAX_MESSAGES = 4096
_MAX_ROLE_CHARS = 64
_FIELD = "messages"


async def render_messages(
    messages: list[dict[str, Any]], model: ServedModel, *, add_generation_prompt: bool = True
) -> str:
    """The prompt's text, special tokens included; `messages` were checked.

    InvalidRequestError (messages) if the template refuses them or there is none.
    """
    if model.template is None:
        raise InvalidRequestError(
            f"{model.name} has no chat template; send a prompt to /v1/completions", field=_FIELD
        )
    return await model.template.render(messages, add_generation_prompt=add_generation_prompt)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Plain messages whose content is text, other fields as they came."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        fail(_FIELD, "a list of at least one message", messages)
    if not messages:
        raise InvalidRequestError("messages is empty; send at least one", field=_FIELD)
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"{len(messages)} messages; at most {MAX_MESSAGES} are taken", field=_FIELD
        )
    return [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _check_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequestError(f"{where} must be an object", field=_FIELD)
    role = message.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= _MAX_ROLE_CHARS:
        raise InvalidRequestError(f"{where} needs a role, such as user", field=_FIELD)
    if message.get("tool_calls") or message.get("function_call"):
        raise InvalidRequestError(f"{where}: tool calls are not supported", field=_FIELD)
    return {**message, "content": _text_of(message.get("content"), where)}


def _text_of(content: Any, where: str) -> str:
    """Parts of type text are joined by newlines; parts of other types are refused."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(
            f"{where}.content must be a string or a list of text parts", field=_FIELD
        )
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequestError(
                f'{where}.content takes only parts of the form {{"type": "text", "text": "..."}}',
                field=_FIELD,
            )
        texts.append(text)
    return "\n".join(texts)
