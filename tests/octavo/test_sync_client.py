"""The blocking client shares all meaning with the other; here is what its own loop adds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from common import errors
from octavo import Delta, Message, RetryPolicy, SyncClient
from tests.support.fake_inference import Break, FakeInference, answer, serve_in_thread

FAST = RetryPolicy(max_tries=4, first_delay_s=0.001, max_delay_s=0.002)


@pytest.fixture
def fake() -> FakeInference:
    return FakeInference()


@pytest.fixture
def client(fake: FakeInference) -> Iterator[SyncClient]:
    with serve_in_thread(fake) as address, SyncClient(address, "secret", retries=FAST) as client:
        yield client


@pytest.mark.parametrize("position", range(6))
def test_a_break_after_any_message_neither_loses_nor_repeats_a_token(
    fake: FakeInference, client: SyncClient, position: int
) -> None:
    fake.breaks = [Break(after_messages=position)]
    deltas = [c for c in client.generate("p", max_tokens=5) if isinstance(c, Delta)]
    assert tuple(token for delta in deltas for token in delta.token_ids) == answer(5)
    assert len(fake.requests) == 2


def test_tries_without_progress_are_bounded(fake: FakeInference, client: SyncClient) -> None:
    fake.breaks = [Break(after_messages=0)] * 50
    with pytest.raises(errors.UnavailableError):
        client.generate_text("p")
    assert len(fake.requests) == FAST.max_tries


def test_an_invalid_request_names_its_field(fake: FakeInference, client: SyncClient) -> None:
    bad = errors.InvalidRequestError("must be at most 1", field="top_p")
    fake.breaks = [Break(after_messages=0, error=bad)]
    with pytest.raises(errors.InvalidRequestError) as error:
        client.generate_text("p", top_p=2.0)
    assert error.value.field == "top_p"


def test_leaving_a_stream_cancels_it_on_the_server(fake: FakeInference, client: SyncClient) -> None:
    fake.hang = True
    chunks = client.generate("p")
    next(chunks)
    chunks.close()
    assert fake.cancelled.wait(10)


def test_unary_calls_answer_and_carry_the_key(fake: FakeInference, client: SyncClient) -> None:
    fake.unary_failures = 2
    assert client.abort("known")
    assert client.model_info().eos_token_ids == (2, 3)
    assert client.server_info().ready
    assert client.detokenize(client.tokenize([Message(role="user", content="x")])) == "user:x"
    assert {sent["authorization"] for sent in fake.metadata} == {"Bearer secret"}
