"""Token ids through core, codec, gRPC and one executor, beside transformers in the same run.

`MEASURED` says it to whoever reads the figures: of what serves a client, the API and the scheduler
service's own loop are not in them.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.bench.gpu.card import Card
from tests.bench.gpu.rows import Rows
from tests.bench.gpu.step_loop import Served, StepLoop, connect
from tests.bench.gpu.transformers_peer import PeerFigures, TransformersPeer
from tests.support.random_llama import LlamaShape

MEASURED = (
    "serving: token ids, all requests at once, through a test's loop over the scheduler's core, the"
    " step codec, gRPC and an executor process; without the scheduler service's loop, API,"
    " tokenizer and clients"
)
GAP_GOAL = 0.03
SPEED_GOAL = 3.0
"""Times transformers' tokens per second."""
GOAL_BATCH = 128
PEER = "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    batches: Sequence[int]
    prompt_tokens: int
    outputs: int


FULL = Load(batches=(1, 8, 32, 128, 256), prompt_tokens=128, outputs=64)
TINY = Load(batches=(2,), prompt_tokens=5, outputs=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run of ours."""

    tokens_s: float
    ttft_s: float
    tpot_s: float
    step_s: float
    """Median time of a decode step on the device, gap included."""
    gap: float
    """Share of decode steps' time in which the device had nothing to do."""
    tokens: list[list[int]]
    """Of each prompt, in their order."""


def figures_of(served: Served) -> Figures:
    arrivals = list(served.arrivals.values())
    times = [(t.gap_ns, t.gap_ns + t.forward_ns + t.sample_ns) for t in served.decode_timings]
    whole = sum(total for _, total in times)
    return Figures(
        tokens_s=sum(map(len, arrivals)) / (served.ended_at - served.began_at),
        ttft_s=statistics.median(a[0] - served.began_at for a in arrivals),
        tpot_s=statistics.median((a[-1] - a[0]) / (len(a) - 1) for a in arrivals),
        step_s=statistics.median(total for _, total in times) / 1e9,
        gap=sum(gap for gap, _ in times) / whole if whole else 0.0,
        tokens=list(served.tokens.values()),
    )


def measure(card: Card, shape: LlamaShape, rows: Rows) -> None:
    load = FULL if card.is_gpu else TINY
    ours = asyncio.run(_ours(card, shape, load, rows))
    for batch, figures in ours.items():
        _say_ours(shape, batch, figures, rows)
    # After ours has given its memory back, as it takes what is free.
    try:
        _measure_peer(card, shape, load, ours, rows)
    except Exception as error:  # noqa: BLE001 - our figures stand without the peer's
        rows.say(f"{shape.name}: transformers' generate_batch was not measured: {error!r}")


def _measure_peer(
    card: Card, shape: LlamaShape, load: Load, ours: dict[int, Figures], rows: Rows
) -> None:
    """The batch that has a goal first, the others while time lasts."""
    peer = TransformersPeer(card, shape)
    longest = 0.0
    for batch in sorted(load.batches, key=lambda batch: (batch != GOAL_BATCH, batch)):
        if rows.seconds_left < 2 * longest:
            rows.say(f"{shape.name}: no time left for transformers at batch {batch}")
            continue
        prompts = _prompts(shape, batch, load.prompt_tokens, seed=2)
        began = time.perf_counter()
        _say_peer(shape, batch, ours[batch], peer.run(prompts, load.outputs), rows)
        longest = max(longest, time.perf_counter() - began)


async def _ours(card: Card, shape: LlamaShape, load: Load, rows: Rows) -> dict[int, Figures]:
    with executor(card, shape, max(load.batches)) as ready:
        rows.add(f"{shape.name}: executor", "KV pool", ready["kv_bytes"] / 2**30, "GiB")
        channel, loop = await connect(ready["port"])
        found = {}
        for batch in load.batches:
            await _run(loop, shape, batch, load.prompt_tokens, 2, seed=1)
            served = await _run(loop, shape, batch, load.prompt_tokens, load.outputs, seed=2)
            found[batch] = figures_of(served)
        await loop.close()
        await channel.close()
        return found


async def _run(
    loop: StepLoop, shape: LlamaShape, batch: int, length: int, outputs: int, seed: int
) -> Served:
    return await loop.serve(_prompts(shape, batch, length, seed), outputs)


def _prompts(shape: LlamaShape, batch: int, length: int, seed: int) -> list[list[int]]:
    choose = random.Random(f"{seed} {batch}")
    return [choose.choices(range(shape.vocab_size), k=length) for _ in range(batch)]


@contextmanager
def executor(card: Card, shape: LlamaShape, max_num_seqs: int) -> Iterator[dict[str, Any]]:
    """What the process says when it is ready."""
    command = [sys.executable, "-m", "tests.bench.gpu.executor_process", "--shape", shape.name]
    command += ["--max-num-seqs", str(max_num_seqs), "--device", card.device.type]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the executor ended with status {process.wait()}")
        yield json.loads(line)
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def agreement(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """Share of tokens before the first that differs, over all prompts.

    Of random weights in half precision some pairs of logits are equal, and a text that took the
    other one goes on apart.
    """
    pairs = list(zip(ours, theirs, strict=True))
    same = sum(
        next((i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b), len(mine))
        for mine, other in pairs
    )
    return same / sum(len(mine) for mine, _ in pairs)


def _say_ours(shape: LlamaShape, batch: int, figures: Figures, rows: Rows) -> None:
    case = f"{shape.name}: serving, batch {batch}"
    for metric, value, unit in (
        ("output tokens", figures.tokens_s, "token/s"),
        ("TTFT", figures.ttft_s * 1e3, "ms"),
        ("TPOT", figures.tpot_s * 1e3, "ms"),
        ("decode step", figures.step_s * 1e3, "ms"),
    ):
        rows.add(case, metric, value, unit)
    rows.add(case, "step gap", figures.gap * 100, "%", goal=f"below {GAP_GOAL:.0%}")


def _say_peer(
    shape: LlamaShape, batch: int, ours: Figures, theirs: PeerFigures, rows: Rows
) -> None:
    case = f"{shape.name}: serving, batch {batch}"
    rows.add(case, "agreement", 100 * agreement(ours.tokens, theirs.tokens), "%")
    for metric, mine, other, unit, scale in (
        ("output tokens", ours.tokens_s, theirs.tokens_s, "token/s", 1.0),
        ("TTFT", ours.ttft_s, theirs.ttft_s, "ms", 1e3),
        ("TPOT", ours.tpot_s, theirs.tpot_s, "ms", 1e3),
    ):
        if other is None:
            continue
        bound = metric == "output tokens" and batch == GOAL_BATCH
        goal = f"at least {SPEED_GOAL:g}" if bound else ""
        theirs = other * scale
        rows.compare(case, metric, mine * scale, unit, peer=PEER, theirs=theirs, goal=goal)
