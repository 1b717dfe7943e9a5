"""Fields that /v1/completions and /v1/chat/completions share beside sampling."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import msgspec

from common.errors import InvalidRequestError, NotFoundError
from scheduler_service.api.fields import Fields, fail
from scheduler_service.api.http.shapes import StreamOptions
from scheduler_service.api.http.token_names import IdNames, TextNames, TokenNames
from scheduler_service.api.request_id import MAX_ID_CHARS, is_acceptable_id
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.tokenizer import Tokenizer

_MAX_NAME_BYTES = 1024

_UNSUPPORTED: Mapping[str, str] = {
    "suffix": "send the text before the gap as the prompt",
    "use_beam_search": "use n with a temperature above 0",
    "tools": "describe the tools in a message instead",
    "functions": "describe the functions in a message instead",
    "audio": "only text is served",
    "modalities": "only text is served",
    "prompt_embeds": "send the prompt as text or token ids",
    "logits_processors": "use logit_bias",
    "bad_words": "use logit_bias",
    "truncate_prompt_tokens": "cut the prompt before you send it",
    "chat_template": "the model's own template is used; render another yourself and send a prompt",
    "chat_template_kwargs": "the model's own template is used as it is",
    "documents": "put the documents in a message",
    "continue_final_message": "render the prompt yourself and use /v1/completions",
}

_FORM = "say in the prompt what form the answer must have"
_CONSTRAINTS: Mapping[str, str] = {
    "structured_outputs": _FORM,
    "guided_json": _FORM,
    "guided_regex": _FORM,
    "guided_choice": _FORM,
    "guided_grammar": _FORM,
    "structural_tag": _FORM,
    "allowed_token_ids": "use logit_bias",
}
"""An empty one constrains too: the schema {} is any JSON, and no ids allowed is nothing."""


class AnswerOptions(msgspec.Struct, frozen=True):
    """How the answer is to be told."""

    is_streamed: bool
    stream_options: StreamOptions
    return_token_ids: bool
    return_tokens_as_token_ids: bool
    """Logprobs call tokens by their ids."""

    def token_names(self, tokenizer: Tokenizer) -> TokenNames:
        return IdNames() if self.return_tokens_as_token_ids else TextNames(tokenizer)


def check_model_name(fields: Fields, model: ServedModel) -> None:
    """NotFoundError for another name; none at all means the one that is served."""
    name = fields.string("model", max_bytes=_MAX_NAME_BYTES)
    if name not in (None, "", model.name):
        raise NotFoundError(f"the model {name!r} is not served here; {model.name!r} is")


def refuse_unsupported(fields: Fields) -> None:
    fields.refuse(_UNSUPPORTED)
    fields.refuse_even_empty(_CONSTRAINTS)
    if fields.get("tool_choice") not in (None, "none", "auto"):
        raise InvalidRequestError(
            "tool_choice is not supported: leave it out, or send none or auto", field="tool_choice"
        )
    response_format = fields.get("response_format")
    if response_format is not None and response_format != {"type": "text"}:
        raise InvalidRequestError(
            f'response_format takes only {{"type": "text"}}: {_FORM}', field="response_format"
        )


def read_request_id(fields: Fields, prefix: str) -> str:
    """The answer's id: after the prefix the client's own `request_id`, else one of ours."""
    wanted = fields.get("request_id")
    if wanted is None:
        return f"{prefix}-{secrets.token_hex(12)}"
    if not isinstance(wanted, str) or not is_acceptable_id(wanted):
        fail("request_id", f"1 to {MAX_ID_CHARS} printable ASCII characters", wanted)
    return f"{prefix}-{wanted}"


def read_answer_options(fields: Fields) -> AnswerOptions:
    is_streamed = fields.flag("stream") or False
    return AnswerOptions(
        is_streamed=is_streamed,
        stream_options=_stream_options(fields, is_streamed=is_streamed),
        return_token_ids=fields.flag("return_token_ids") or False,
        return_tokens_as_token_ids=fields.flag("return_tokens_as_token_ids") or False,
    )


def _stream_options(fields: Fields, *, is_streamed: bool) -> StreamOptions:
    value = fields.get("stream_options")
    if value is None:
        return StreamOptions()
    if not isinstance(value, dict):
        fail("stream_options", "an object", value)
    if not is_streamed:
        raise InvalidRequestError(
            "stream_options is only for stream true; leave it out", field="stream_options"
        )
    options = Fields(value)
    try:
        return StreamOptions(
            include_usage=options.flag("include_usage") or False,
            continuous_usage_stats=options.flag("continuous_usage_stats") or False,
        )
    except InvalidRequestError as error:
        raise InvalidRequestError(f"stream_options: {error}", field="stream_options") from None
