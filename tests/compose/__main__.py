"""Up, ask, stop, scale, kill, down. `COMPOSE` names the command, by default `docker compose`.

It needs a container engine and builds both images, so it is no part of the other tests:
`make test-compose`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx

from common.errors import OctavoError
from octavo import SyncClient
from tests.compose.absences import (
    NUM_ANSWER_TOKENS,
    NUM_STORY_TOKENS,
    QUESTION,
    STORY,
    begin_alone,
    lose_one_mid_stream,
    stop_and_return,
)
from tests.compose.containers import check_health, check_images, check_models, check_ports
from tests.compose.fleet import Failure, Fleet, say, wait_until


def main() -> int:
    command = os.environ.get("COMPOSE") or "docker compose"
    if shutil.which(shlex.split(command)[0]) is None:
        say(f"COMPOSE: there is no command {command!r} here")
        return 2
    fleet = Fleet(command)
    status = 1
    try:
        show(fleet)
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


def show(fleet: Fleet) -> None:
    build(fleet)
    begin_alone(fleet)
    fleet.compose("up", "-d", "--no-build")
    fleet.wait_ready()
    check_images(fleet)
    check_models(fleet)
    check_ports(fleet)
    check_health(fleet)
    answer = answer_from_the_host(fleet)
    # Asked while there is one executor: that one has the prompt cached from now on.
    story = fleet.text(STORY, NUM_STORY_TOKENS)
    stop_and_return(fleet, answer, story)
    fleet.text(STORY, NUM_STORY_TOKENS)
    scale_to_two(fleet)
    lose_one_mid_stream(fleet, answer, story)


def build(fleet: Fleet) -> None:
    started = time.monotonic()
    fleet.compose("build")
    say(f"images are built, after {time.monotonic() - started:.0f} s")


def answer_from_the_host(fleet: Fleet) -> str:
    answer = _streamed("HTTP", fleet.stream(QUESTION, NUM_ANSWER_TOKENS))
    if _streamed("gRPC", fleet.grpc_stream(QUESTION, NUM_ANSWER_TOKENS)) != answer:
        raise Failure("gRPC and HTTP differ")
    _check_num_executors(fleet, 1)
    return answer


def scale_to_two(fleet: Fleet) -> None:
    before = fleet.metrics()
    fleet.compose("up", "-d", "--no-build", "--no-recreate", "--scale", "executor=2")
    wait_until("two executors are in use", lambda: len(fleet.ready_executors()) == 2)
    if fleet.metrics().value("octavo_generation_tokens_total") < before.value(
        "octavo_generation_tokens_total"
    ):
        raise Failure("the scheduler was restarted")
    with ThreadPoolExecutor(8) as pool:
        asks = [pool.submit(fleet.text, f"{number} is a number that", 16) for number in range(8)]
        if not all(ask.result() for ask in asks):
            raise Failure("an answer is empty")
    after = fleet.metrics().steps
    # One that was stopped before is told of until it is forgotten.
    steps = {at: after[at] - before.steps.get(at, 0.0) for at in fleet.ready_executors()}
    say(f"8 requests, steps by executor: {steps}")
    if len(steps) != 2 or not all(steps.values()):
        raise Failure("not both executors were used")
    _check_num_executors(fleet, 2)


def go_down(fleet: Fleet) -> None:
    started = time.monotonic()
    fleet.compose("down", "--volumes")
    if left := fleet.compose("ps", "-q").split():
        raise Failure(f"containers are left: {left}")
    say(f"down, after {time.monotonic() - started:.1f} s")


def _streamed(protocol: str, stream: Iterator[str]) -> str:
    started = time.monotonic()
    pieces = [piece for piece in stream if piece]
    text = "".join(pieces)
    say(f"{protocol}: {len(pieces)} pieces in {time.monotonic() - started:.1f} s: {text!r}")
    if len(pieces) < NUM_ANSWER_TOKENS // 2:
        raise Failure("that is no stream")
    return text


def _check_num_executors(fleet: Fleet, expected: int) -> None:
    with SyncClient(fleet.address) as client:
        found = client.server_info().num_executors
    if found != expected:
        raise Failure(f"GetServerInfo: {found} executors, not {expected}")


if __name__ == "__main__":
    sys.exit(main())
