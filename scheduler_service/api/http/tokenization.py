"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.errors import InvalidRequestError
from scheduler_service.api.chat_messages import check_messages, render_messages
from scheduler_service.api.fields import Fields, check_token_ids
from scheduler_service.api.http.answer import json_response
from scheduler_service.api.http.body import MAX_BODY_BYTES, read_fields
from scheduler_service.api.http.options import check_model_name, refuse_unsupported
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.service import Service


def routes(service: Service) -> list[Route]:
    async def tokenize(request: Request) -> Response:
        model = service.model
        fields = await read_fields(request)
        check_model_name(fields, model)
        refuse_unsupported(fields)
        text = await _text(fields, model)
        add_special_tokens = fields.flag("add_special_tokens")
        if add_special_tokens is None:
            add_special_tokens = not fields.has("messages")  # a template writes its own
        ids = await model.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": model.max_model_len,
            "tokens": ids,
        }
        if fields.flag("return_token_strs"):
            answer["token_strs"] = [model.tokenizer.token(token_id) for token_id in ids]
        return json_response(answer)

    async def detokenize(request: Request) -> Response:
        model = service.model
        fields = await read_fields(request)
        check_model_name(fields, model)
        ids = check_token_ids(fields.get("tokens"), model.vocab_size, field="tokens")
        skip_special_tokens = fields.flag("skip_special_tokens") or False
        text = await model.tokenizer.detokenize(ids, skip_special_tokens=skip_special_tokens)
        return json_response({"prompt": text})

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


async def _text(fields: Fields, model: ServedModel) -> str:
    if fields.has("messages"):
        add_generation_prompt = fields.flag("add_generation_prompt") is not False
        return await render_messages(
            check_messages(fields.get("messages")),
            model,
            add_generation_prompt=add_generation_prompt,
        )
    prompt = fields.string("prompt", max_bytes=MAX_BODY_BYTES)
    if prompt is None:
        raise InvalidRequestError("send prompt or messages", field="prompt")
    return prompt
