"""Asks the gRPC Inference service over a real channel, and gathers what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from proto import inference_pb2 as pb
from proto import inference_pb2_grpc

TEXT = " Paris 🗼 is the capital of France."


def ask(text: str = "Hello", **fields: Any) -> pb.GenerateRequest:
    """Sampling fields by their own names, the others after `_`."""
    request = {name[1:]: value for name, value in fields.items() if name.startswith("_")}
    sampling = {name: value for name, value in fields.items() if not name.startswith("_")}
    if not {"token_ids", "messages"} & set(request):
        request["text"] = text
    return pb.GenerateRequest(
        **({"return_text": True} | request),
        sampling=pb.SamplingParams(**({"max_tokens": 50} | sampling)),
    )


class Told:
    """Everything one call said, checked against what the proto promises."""

    def __init__(self, replies: list[pb.GenerateReply]) -> None:
        first, *rest = replies
        assert first.HasField("started")
        assert not any(reply.HasField("started") for reply in rest)
        assert [reply.HasField("usage") for reply in replies] == [False] * len(rest) + [True]
        assert len({reply.request_id for reply in replies}) == 1
        self.started, self.usage = first.started, replies[-1].usage
        self.request_id = first.request_id
        self.texts: dict[int, str] = {}
        self.ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[pb.TokenLogprobs]] = {}
        self.finished: dict[int, pb.Finished] = {}
        for reply in replies:
            indexes = [delta.index for delta in reply.deltas]
            assert len(indexes) == len(set(indexes))
            for delta in reply.deltas:
                assert delta.index not in self.finished
                self.texts[delta.index] = self.texts.get(delta.index, "") + delta.text
                self.ids.setdefault(delta.index, []).extend(delta.token_ids)
                self.logprobs.setdefault(delta.index, []).extend(delta.logprobs)
            for end in reply.finished:
                assert end.index not in self.finished
                self.finished[end.index] = end


async def told(stub: inference_pb2_grpc.InferenceStub, request: pb.GenerateRequest) -> Told:
    return Told([reply async for reply in stub.Generate(request)])


def trailing(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    # grpc's Metadata takes keys for a mapping's, but gives out pairs.
    return {name: value for name, value in error.trailing_metadata() or ()}  # noqa: C416


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)
