"""Parts of a running Octavo die; its clients see a pause."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from octavo import Delta, Finished, SyncClient
from tests.support.processes import descendants, eventually, is_gone
from tests.support.up_process import UpProcess

PROMPT = "Once upon a time there was"
NUM_TOKENS = 40

pytestmark = pytest.mark.timeout(300)
"""Of each test with its share of the stack's start."""


@pytest.fixture(scope="module")
def fragile() -> Iterator[UpProcess]:
    with UpProcess() as process:
        yield process


@pytest.fixture(scope="module")
def undisturbed(fragile: UpProcess) -> tuple[int, ...]:
    with SyncClient(fragile.grpc) as client:
        generation = client.generate_text(
            PROMPT, seed=5, temperature=0.9, max_tokens=NUM_TOKENS, ignore_eos=True
        )
    return generation.choices[0].token_ids


@pytest.mark.parametrize(
    ("victim", "patience_s"),
    [
        (("executor_service",), 60),
        (("scheduler_service", "--role=engine"), 30),
        (("scheduler_service", "--role=api"), 8),
        (("scheduler_service", "--role=supervisor"), 30),
    ],
    ids=["executor", "step loop", "api worker", "scheduler"],
)
def test_a_stream_survives_the_death_of(
    fragile: UpProcess, undisturbed: tuple[int, ...], victim: tuple[str, ...], patience_s: float
) -> None:
    """A worker is back within 2 s, and a client that looks again every 5 s would miss it."""
    (pid,) = fragile.pids(*victim)
    token_ids: list[int] = []
    ends: list[Finished] = []
    died_at = resumed_at = 0.0
    with SyncClient(fragile.grpc) as client:
        for chunk in client.generate(
            PROMPT, seed=5, temperature=0.9, max_tokens=NUM_TOKENS, ignore_eos=True
        ):
            if isinstance(chunk, Delta):
                token_ids.extend(chunk.token_ids)
                resumed_at = time.monotonic()
                if len(token_ids) >= 10 and not is_gone(pid):
                    os.kill(pid, signal.SIGKILL)
                    died_at = time.monotonic()
            elif isinstance(chunk, Finished):
                ends.append(chunk)
    assert tuple(token_ids) == undisturbed
    assert [end.reason for end in ends] == ["length"]
    assert is_gone(pid)
    assert resumed_at - died_at < patience_s
    assert eventually(lambda: is_ready(fragile), patience_s=30)


def is_ready(up: UpProcess) -> bool:
    try:
        return httpx.get(f"{up.http}/health/ready", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_ctrl_c_ends_everything_within_10_s_even_while_a_stream_runs() -> None:
    with UpProcess() as up, SyncClient(up.grpc) as client:
        chunks = client.generate(PROMPT, max_tokens=1500, ignore_eos=True)
        assert any(isinstance(chunk, Delta) for chunk in chunks)
        children = descendants(up.process.pid)
        assert len(children) >= 4
        began = time.monotonic()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(15) == 0
        assert time.monotonic() - began < 10
        assert all(is_gone(pid) for pid in children)
        chunks.close()


def test_no_process_outlives_a_killed_parent_by_10_s(fragile: UpProcess) -> None:
    """The last one here, since it ends the stack that the others share."""
    children = descendants(fragile.process.pid)
    fragile.process.kill()
    fragile.process.wait(5)
    assert len(children) >= 4
    assert eventually(lambda: all(is_gone(pid) for pid in children), patience_s=10)
