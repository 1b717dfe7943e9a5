"""Services that are not there yet, stop, return or crash, and what clients see of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from tests.compose.containers import SERVICES, is_healthy
from tests.compose.fleet import Failure, Fleet, say, wait_until

STORY = "Once upon a time, in a village by the sea, there lived a fisherman who told everybody that"
"""Longer than a block."""
NUM_STORY_TOKENS = 300
NUM_BEFORE_THE_KILL = 40
QUESTION = "The capital of France is"
NUM_ANSWER_TOKENS = 24
NUM_DRAINED_TOKENS = 60


def begin_alone(fleet: Fleet) -> None:
    """The scheduler first: it waits for its executor, and says so meanwhile."""
    fleet.compose("up", "-d", "--no-build", "--no-deps", "scheduler")
    wait_until("the scheduler lives, alone", lambda: fleet.health() == 200)
    _check_not_ready(fleet)


def stop_and_return(fleet: Fleet, answer: str, story: str) -> None:
    """One after another, in the order that suits the others least."""
    started = time.monotonic()
    stream = fleet.stream(STORY, NUM_DRAINED_TOKENS)
    drained = next(stream)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(fleet.compose, "stop", "scheduler")
        drained += "".join(stream)
        stopped.result()
    if not story.startswith(drained):
        raise Failure(f"while the scheduler stopped, a stream went wrong: {drained!r}")
    _check_stopped_by_itself("scheduler", time.monotonic() - started)
    fleet.compose("stop", "redis")
    fleet.compose("start", "scheduler")
    fleet.wait_ready()
    _check_answer(fleet, answer)

    started = time.monotonic()
    fleet.compose("stop", "executor")
    _check_stopped_by_itself("executor", time.monotonic() - started)
    wait_until("the scheduler has no executor", lambda: fleet.health("/ready") == 503)
    _check_not_ready(fleet)
    fleet.compose("start", "executor")
    fleet.compose("start", "redis")
    fleet.wait_ready()
    _check_answer(fleet, answer)


def lose_one_mid_stream(fleet: Fleet, answer: str, story: str) -> None:
    first = fleet.first_executor()
    before = fleet.metrics().steps
    text, pauses_s, at_the_kill = "", list[float](), before
    asks = list[Future[str]]()
    with ThreadPoolExecutor(5) as pool:
        last_at = time.monotonic()
        for count, piece in enumerate(fleet.stream(STORY, NUM_STORY_TOKENS), 1):
            pauses_s.append(time.monotonic() - last_at)
            text += piece
            if count == NUM_BEFORE_THE_KILL:
                at_the_kill = fleet.metrics().steps
                pool.submit(fleet.kill_first_executor)
                asks = [
                    pool.submit(ask, QUESTION, NUM_ANSWER_TOKENS)
                    for ask in (fleet.text, fleet.grpc_text) * 2
                ]
            last_at = time.monotonic()
        answers = [ask.result() for ask in asks]
    say(f"the stream ended; its longest pause was {max(pauses_s[NUM_BEFORE_THE_KILL:]):.1f} s")
    if text != story:
        raise Failure(f"after the loss of an executor\n{text!r}\nis not\n{story!r}")
    if answers != [answer] * len(answers):
        raise Failure(f"asked at the loss of an executor: {answers}, not {answer!r}")
    say(f"its {NUM_STORY_TOKENS} tokens and {len(answers)} answers beside it are undisturbed")
    _check_moved(first, before, at_the_kill, fleet.metrics().steps)
    wait_until("the lost one is back, at any address", lambda: len(fleet.ready_executors()) == 2)
    wait_until("addresses that are gone are forgotten", lambda: len(fleet.metrics().ready) == 2)


def _check_moved(
    first: str,
    before: Mapping[str, float],
    at_the_kill: Mapping[str, float],
    after: Mapping[str, float],
) -> None:
    num_first = at_the_kill.get(first, 0.0) - before.get(first, 0.0)
    num_elsewhere = sum(after[at] - before.get(at, 0.0) for at in after if at != first)
    say(f"steps: {num_first:.0f} on {first} before the kill, {num_elsewhere:.0f} elsewhere")
    if not num_first or not num_elsewhere:
        raise Failure("it did not begin where its prompt is cached and end elsewhere")


def _check_not_ready(fleet: Fleet) -> None:
    status = fleet.health("/ready")
    if status != 503 or is_healthy(fleet, "scheduler"):
        raise Failure(f"without an executor, the scheduler's readiness is {status}")


def _check_answer(fleet: Fleet, answer: str) -> None:
    for found in (
        fleet.text(QUESTION, NUM_ANSWER_TOKENS),
        fleet.grpc_text(QUESTION, NUM_ANSWER_TOKENS),
    ):
        if found != answer:
            raise Failure(f"after a return: {found!r}, not {answer!r}")


def _check_stopped_by_itself(service: str, seconds: float) -> None:
    """A service that has to be killed takes its whole grace period."""
    grace_s = float(SERVICES[service]["stop_grace_period"].removesuffix("s"))
    if seconds >= grace_s:
        raise Failure(f"{service} took {seconds:.1f} s to stop, of {grace_s:.0f} s")
    say(f"{service} stopped by itself, after {seconds:.1f} s")
