"""Between the client's values and inference.proto. The only translator; it does no I/O.

Both clients, with and without asyncio, speak through this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtoMessage

from common.errors import InvalidRequestError
from octavo.types import (
    Chunk,
    Delta,
    Finished,
    GenerateOptions,
    Message,
    ModelInfo,
    Prompt,
    ServerInfo,
    Started,
    TokenLogprobs,
    Usage,
)
from proto import inference_pb2 as pb

SAMPLING_FIELDS = frozenset(field.name for field in pb.SamplingParams.DESCRIPTOR.fields)
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
REQUEST_FIELDS = frozenset(
    ["request_id", "model", "n", "priority", "cache_salt", "return_text", "echo_prompt"]
)


def generate_request(prompt: Prompt, options: GenerateOptions) -> pb.GenerateRequest:
    """Builds the first try's message. A value of the wrong kind is an InvalidRequestError."""
    request = pb.GenerateRequest(return_text=True)
    if isinstance(prompt, str):
        _set(request, "text", prompt, "prompt")
    elif is_conversation(prompt):
        request.messages.CopyFrom(_messages(prompt))
    else:
        request.token_ids.SetInParent()
        _set(request.token_ids, "ids", prompt, "prompt")
    for name, value in options.items():
        if name == "timeout_s" or value is None:
            continue
        if name in REQUEST_FIELDS:
            _set(request, name, value, name)
        elif name == "stop" and isinstance(value, str):
            request.sampling.stop.append(value)  # one string is a list of one, as OpenAI has it
        elif name in SAMPLING_FIELDS:
            _set(request.sampling, name, value, name)
        else:
            raise InvalidRequestError(f"there is no option {name}", field=name)
    return request


def tokenize_request(
    prompt: str | Sequence[Message], *, add_special_tokens: bool | None
) -> pb.TokenizeRequest:
    request = pb.TokenizeRequest()
    if add_special_tokens is not None:
        request.add_special_tokens = add_special_tokens
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.messages.CopyFrom(_messages(prompt))
    return request


def detokenize_request(
    token_ids: Sequence[int], *, skip_special_tokens: bool | None
) -> pb.DetokenizeRequest:
    request = pb.DetokenizeRequest()
    if skip_special_tokens is not None:
        request.skip_special_tokens = skip_special_tokens
    _set(request, "token_ids", token_ids, "token_ids")
    return request


def is_conversation(prompt: Prompt) -> bool:
    """Whether the prompt is a list of messages; an empty list is an empty list of token ids."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Message)


def _messages(prompt: Prompt) -> pb.Messages:
    turns = cast("Sequence[Message]", prompt)
    return pb.Messages(messages=[pb.Message(role=m.role, content=m.content) for m in turns])


def _set(message: ProtoMessage, name: str, value: object, field: str) -> None:
    """Assigns a scalar, list or map; protobuf's complaint becomes one that names the field."""
    try:
        if isinstance(value, Mapping):
            getattr(message, name).update(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        bounds = _BOUNDS.get(message.DESCRIPTOR.fields_by_name[name].cpp_type)
        if bounds and type(value) is int:
            low, high = bounds
            raise InvalidRequestError(
                f"{field} must be an integer from {low} to {high}, not {value}", field=field
            ) from None
        raise InvalidRequestError(f"{field}: {error}", field=field) from error


def read_started(reply: pb.GenerateReply) -> Started:
    started = reply.started
    return Started(
        request_id=reply.request_id,
        seed=started.seed,
        num_prompt_tokens=started.num_prompt_tokens,
        num_cached_tokens=started.num_cached_tokens,
        prompt_token_ids=tuple(started.prompt_token_ids),
    )


def read_chunks(reply: pb.GenerateReply) -> Iterator[Chunk]:
    """Deltas, then ends, then usage: all of a message but `started`."""
    for delta in reply.deltas:
        yield Delta(
            index=delta.index,
            token_ids=tuple(delta.token_ids),
            text=delta.text,
            logprobs=tuple(_read_logprobs(entry) for entry in delta.logprobs),
        )
    for finished in reply.finished:
        yield _read_finished(finished)
    if reply.HasField("usage"):
        yield Usage(**_fields(reply.usage))


def _read_logprobs(entry: pb.TokenLogprobs) -> TokenLogprobs:
    top = tuple(zip(entry.top_token_ids, entry.top_logprobs, strict=True))
    return TokenLogprobs(logprob=entry.logprob, rank=entry.rank, top=top)


def _read_finished(finished: pb.Finished) -> Finished:
    stop_reason: str | int | None = finished.stop_reason or None
    if finished.HasField("stop_token_id"):
        stop_reason = finished.stop_token_id
    return Finished(
        index=finished.index,
        reason=finished.reason,
        num_output_tokens=finished.num_output_tokens,
        stop_reason=stop_reason,
        message=finished.message,
    )


def read_model_info(reply: pb.GetModelInfoReply) -> ModelInfo:
    fields = _fields(reply)
    fields["eos_token_ids"] = tuple(reply.eos_token_ids)
    return ModelInfo(**fields)


def read_server_info(reply: pb.GetServerInfoReply) -> ServerInfo:
    return ServerInfo(**_fields(reply))


def _fields(message: ProtoMessage) -> dict[str, Any]:
    """The message's fields by name; its value class has the same ones."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
