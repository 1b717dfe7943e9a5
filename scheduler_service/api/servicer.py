"""The gRPC Inference service: thin methods from messages to generations and back."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from common import grpc_server
from common.errors import OctavoError
from common.plan import TokenLogprobs
from common.version import VERSION
from proto import inference_pb2 as pb
from proto import inference_pb2_grpc
from scheduler_service.api.chat_messages import render_messages
from scheduler_service.api.choice import ChoiceEnd, Delta
from scheduler_service.api.fields import check_token_ids
from scheduler_service.api.generation import Generation
from scheduler_service.api.grpc_request import messages_of, read_request
from scheduler_service.api.prompt_run import PromptRun
from scheduler_service.api.service import Service
from scheduler_service.engine.messages import ServerInfo

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Reply = TypeVar("Reply")
Servicer = TypeVar("Servicer")
Request = TypeVar("Request")


def _telling_errors(
    method: Callable[[Servicer, Request, Context], Awaitable[Reply]],
) -> Callable[[Servicer, Request, Context], Awaitable[Reply]]:
    """Ends a unary call with the status of an OctavoError."""

    @functools.wraps(method)
    async def wrapped(self: Servicer, request: Request, context: Context) -> Reply:
        try:
            return await method(self, request, context)
        except OctavoError as error:
            await grpc_server.abort(context, error)

    return wrapped


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    def __init__(self, service: Service) -> None:
        self._service = service

    async def Generate(  # noqa: N802 - the proto's name
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateReply]:
        """A cancelled call leaves the generation's block, which aborts it."""
        arrived_at = time.monotonic()
        try:
            asked = await read_request(
                request, self._service.model, call_timeout_s=context.time_remaining()
            )
            async with self._service.generate(asked, arrived_at) as generation:
                async for reply in _replies(generation):
                    yield reply
        except OctavoError as error:
            await grpc_server.abort(context, error)

    @_telling_errors
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:  # noqa: N802
        found = await self._service.connection.abort_by_id(request.request_id)
        return pb.AbortReply(found=found)

    @_telling_errors
    async def GetModelInfo(  # noqa: N802
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoReply:
        model = self._service.model
        return pb.GetModelInfoReply(
            model=model.name,
            fingerprint=model.info.fingerprint,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            eos_token_ids=sorted(model.eos_token_ids),
            has_chat_template=model.template is not None,
            dtype=model.info.dtype,
            kv_cache_dtype=model.info.kv_cache_dtype,
        )

    @_telling_errors
    async def GetServerInfo(  # noqa: N802
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoReply:
        info = await self._service.connection.call("server_info")
        assert isinstance(info, ServerInfo)
        return pb.GetServerInfoReply(
            version=VERSION,
            ready=self._service.unready_reason is None,
            num_executors=info.num_executors,
            num_requests_running=info.num_requests_running,
            num_requests_waiting=info.num_requests_waiting,
            block_size=self._service.model.info.block_size,
            num_blocks=info.num_blocks,
            num_free_blocks=info.num_free_blocks,
            max_num_seqs=info.max_num_seqs,
            max_num_batched_tokens=info.max_num_batched_tokens,
        )

    @_telling_errors
    async def Tokenize(  # noqa: N802
        self, request: pb.TokenizeRequest, context: Context
    ) -> pb.TokenizeReply:
        model = self._service.model
        is_chat = request.WhichOneof("input") == "messages"
        text = request.text
        if is_chat:
            text = await render_messages(messages_of(request.messages), model)
        add = request.add_special_tokens if request.HasField("add_special_tokens") else not is_chat
        token_ids = await model.tokenizer.encode(text, add_special_tokens=add)
        return pb.TokenizeReply(token_ids=token_ids, max_model_len=model.max_model_len)

    @_telling_errors
    async def Detokenize(  # noqa: N802
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeReply:
        model = self._service.model
        ids = check_token_ids(list(request.token_ids), model.vocab_size, field="token_ids")
        skip = not request.HasField("skip_special_tokens") or request.skip_special_tokens
        text = await model.tokenizer.detokenize(ids, skip_special_tokens=skip)
        return pb.DetokenizeReply(text=text)


async def _replies(generation: Generation) -> AsyncIterator[pb.GenerateReply]:
    run = generation.runs[0]
    submission = run.submission
    is_first = True
    awaits_prompt_logprobs = submission.params.num_prompt_logprobs is not None
    echo: dict[int, str] = {}
    if submission.request.echo:
        echo = dict.fromkeys(range(len(run.choices)), generation.prompt_text(run))
    while (deltas := await generation.next()) is not None:
        reply = pb.GenerateReply(request_id=submission.request_id)
        if is_first:
            reply.started.CopyFrom(_started(run))
            is_first = False
        if awaits_prompt_logprobs and run.has_all_prompt_logprobs:
            entries = (entry for entry in run.prompt_logprobs if entry is not None)
            reply.prompt_logprobs.extend(map(_logprobs, entries))
            awaits_prompt_logprobs = False
        for delta in deltas:
            _add_delta(reply, delta, echo.pop(delta.index, ""))
        yield reply
    yield pb.GenerateReply(request_id=submission.request_id, usage=_usage(generation))


def _started(run: PromptRun) -> pb.Started:
    submission = run.submission
    return pb.Started(
        seed=submission.params.seed,
        num_prompt_tokens=len(submission.prompt_token_ids),
        num_cached_tokens=run.num_cached_tokens,
        prompt_token_ids=submission.prompt_token_ids,
    )


def _usage(generation: Generation) -> pb.Usage:
    return pb.Usage(
        num_prompt_tokens=generation.num_prompt_tokens,
        num_output_tokens=generation.num_output_tokens,
        num_cached_tokens=generation.num_cached_tokens,
    )


def _add_delta(reply: pb.GenerateReply, delta: Delta, echo: str) -> None:
    if delta.token_ids or delta.text or echo:
        added = reply.deltas.add(
            index=delta.index, token_ids=delta.token_ids, text=echo + delta.text
        )
        added.logprobs.extend(_logprobs(entry.logprobs) for entry in delta.entries)
    if delta.end is not None:
        reply.finished.append(_finished(delta.index, delta.end))


def _logprobs(entry: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        logprob=entry.logprobs[0],
        rank=entry.rank,
        top_token_ids=entry.token_ids[1:],
        top_logprobs=entry.logprobs[1:],
    )


def _finished(index: int, end: ChoiceEnd) -> pb.Finished:
    return pb.Finished(
        index=index,
        reason=end.reason,
        stop_reason=end.stop_reason if isinstance(end.stop_reason, str) else "",
        stop_token_id=end.stop_reason if isinstance(end.stop_reason, int) else None,
        num_output_tokens=end.num_output_tokens,
        message=end.message,
    )
