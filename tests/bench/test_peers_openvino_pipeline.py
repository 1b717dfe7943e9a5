from __future__ import annotations

import asyncio
import json

import pytest

from tests.bench.serving.peers.openvino_pipeline import complete
from tests.bench.serving.sse_client import ServerFailed
from tests.bench.serving.timeline import Timeline
from tests.bench.serving.workloads import Ask


async def answer(*lines: dict[str, object]) -> Timeline:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert json.loads(await reader.readline()) == {"prompt": [5, 6], "num_outputs": 3}
        for line in lines:
            writer.write(json.dumps(line).encode() + b"\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        timeline = Timeline(0.0)
        await complete(port, Ask(prompt=(5, 6), num_outputs=3), timeline)
    return timeline


async def test_times_are_those_of_the_steps_that_gave_the_tokens() -> None:
    timeline = await answer({"at": 1.5, "tokens": [7]}, {"at": 2.5, "tokens": [8, 9]})
    assert (timeline.tokens, timeline.arrivals) == ([7, 8, 9], [1.5, 2.5, 2.5])


async def test_a_pipeline_that_ends_early_is_a_failure() -> None:
    with pytest.raises(ServerFailed, match="1 tokens instead of 3"):
        await answer({"at": 1.5, "tokens": [7]})
