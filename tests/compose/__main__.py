"""Up, ask, scale, kill, down. `COMPOSE` names the command, by default `docker compose`.

It needs a container engine and builds both images, so it is no part of the other tests:
`make test-compose`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx

from common.errors import OctavoError
from octavo import SyncClient
from tests.compose.fleet import Failure, Fleet, say, wait_until

PROMPT = "The capital of France is"
STORY = "Once upon a time, in a village by the sea, there lived a fisherman who told everybody that"
"""Longer than a block."""
NUM_STORY_TOKENS = 300
NUM_BEFORE_THE_KILL = 40


def main() -> int:
    command = os.environ.get("COMPOSE") or "docker compose"
    if shutil.which(shlex.split(command)[0]) is None:
        say(f"COMPOSE: there is no command {command!r} here")
        return 2
    fleet = Fleet(command)
    status = 1
    try:
        come_up(fleet)
        answer_from_the_host(fleet)
        # Asked while there is one executor: that one has the prompt cached from now on.
        story = _text(fleet, STORY, NUM_STORY_TOKENS)
        scale_to_two(fleet)
        lose_one_mid_stream(fleet, story)
        status = 0
    except (Failure, OctavoError, httpx.HTTPError) as failure:
        say(f"FAILED: {failure!r}")
        fleet.show_logs()
    try:
        go_down(fleet)
    except Failure as failure:
        say(f"FAILED to go down: {failure}")
        status = 1
    say("passed" if status == 0 else "failed")
    return status


def come_up(fleet: Fleet) -> None:
    started = time.monotonic()
    fleet.compose("build")
    say(f"images are built, after {time.monotonic() - started:.0f} s")
    fleet.compose("up", "-d")
    fleet.wait_ready()


def answer_from_the_host(fleet: Fleet) -> None:
    started = time.monotonic()
    pieces = list(fleet.stream(PROMPT, 24))
    text = "".join(pieces)
    say(f"HTTP: {len(pieces)} pieces in {time.monotonic() - started:.1f} s: {text!r}")
    if len(pieces) < 12:
        raise Failure("that is no stream")
    with SyncClient(fleet.address) as client:
        generation = client.generate_text(PROMPT, max_tokens=24, min_tokens=24, temperature=0.0)
        say(f"gRPC: {generation.choices[0].text!r}")
        if generation.choices[0].text != text:
            raise Failure("gRPC and HTTP differ")
        info = client.server_info()
    if info.num_executors != 1:
        raise Failure(f"{info.num_executors} executors, not 1")


def scale_to_two(fleet: Fleet) -> None:
    before = fleet.metrics()
    fleet.compose("up", "-d", "--no-build", "--no-recreate", "--scale", "executor=2")
    wait_until("two executors are in use", lambda: len(_ready(fleet)) == 2)
    if fleet.metrics().value("octavo_generation_tokens_total") < before.value(
        "octavo_generation_tokens_total"
    ):
        raise Failure("the scheduler was restarted")
    with ThreadPoolExecutor(8) as pool:
        asks = [pool.submit(_text, fleet, f"{number} is a number that", 16) for number in range(8)]
        if not all(ask.result() for ask in asks):
            raise Failure("an answer is empty")
    steps = fleet.metrics().steps
    say(f"steps by executor: {dict(steps)}")
    if len(steps) != 2 or not all(steps.values()):
        raise Failure("not both executors were used")
    with SyncClient(fleet.address) as client:
        say(f"GetServerInfo: {client.server_info().num_executors} executors")


def lose_one_mid_stream(fleet: Fleet, expected: str) -> None:
    first = fleet.first_executor()
    before = fleet.metrics().steps
    text, pauses_s, at_the_kill = "", list[float](), before
    with ThreadPoolExecutor(1) as killer:
        last_at = time.monotonic()
        for count, piece in enumerate(fleet.stream(STORY, NUM_STORY_TOKENS), 1):
            pauses_s.append(time.monotonic() - last_at)
            text += piece
            if count == NUM_BEFORE_THE_KILL:
                at_the_kill = fleet.metrics().steps
                killer.submit(fleet.kill_first_executor)
            last_at = time.monotonic()
    say(f"the stream ended; its longest pause was {max(pauses_s[NUM_BEFORE_THE_KILL:]):.1f} s")
    num_first = at_the_kill[first] - before[first]
    after = fleet.metrics().steps
    num_elsewhere = sum(after[at] - before.get(at, 0.0) for at in after if at != first)
    say(f"steps: {num_first:.0f} on {first} before the kill, {num_elsewhere:.0f} elsewhere")
    if not num_first or not num_elsewhere:
        raise Failure("it did not begin where its prompt is cached and end elsewhere")
    if text != expected:
        raise Failure(f"after the loss of an executor\n{text!r}\nis not\n{expected!r}")
    say(f"its {NUM_STORY_TOKENS} tokens are those of an undisturbed run")
    wait_until("the lost executor is back, at any address", lambda: len(_ready(fleet)) == 2)
    wait_until("addresses that are gone are forgotten", lambda: len(_states(fleet)) == 2)


def go_down(fleet: Fleet) -> None:
    started = time.monotonic()
    fleet.compose("down", "--volumes")
    say(f"down, after {time.monotonic() - started:.1f} s")


def _text(fleet: Fleet, prompt: str, num_tokens: int) -> str:
    return "".join(fleet.stream(prompt, num_tokens))


def _states(fleet: Fleet) -> Mapping[str, float]:
    return fleet.metrics().by_executor("octavo_executor_ready")


def _ready(fleet: Fleet) -> set[str]:
    """Addresses of the executors that plans are sent to."""
    return {address for address, is_ready in _states(fleet).items() if is_ready}


if __name__ == "__main__":
    sys.exit(main())
