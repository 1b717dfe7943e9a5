"""The asyncio client against a real gRPC server whose answers and failures are scripted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc
import pytest

from common import errors
from octavo import Chunk, Client, Delta, Finished, Message, RetryPolicy, Started, Usage
from tests.support.fake_inference import SEED, Break, FakeInference, answer, serve

FAST = RetryPolicy(max_tries=4, max_resumes=6, first_delay_s=0.001, max_delay_s=0.002)


async def chunks_of(fake: FakeInference, prompt: str = "p", **options: object) -> list[Chunk]:
    async with serve(fake) as address, Client(address, retries=FAST) as client:
        return [chunk async for chunk in client.generate(prompt, **options)]  # type: ignore[arg-type]


def token_ids(chunks: list[Chunk], index: int = 0) -> tuple[int, ...]:
    deltas = [chunk for chunk in chunks if isinstance(chunk, Delta) and chunk.index == index]
    return tuple(token for delta in deltas for token in delta.token_ids)


async def test_a_stream_is_started_then_deltas_then_ends_then_usage() -> None:
    chunks = await chunks_of(FakeInference(), max_tokens=3)
    kinds = [type(chunk) for chunk in chunks]
    assert kinds == [Started, Delta, Delta, Delta, Finished, Usage]
    assert chunks[0] == Started(
        request_id="chosen-by-server",
        seed=SEED,
        num_prompt_tokens=5,
        num_cached_tokens=2,
        prompt_token_ids=(),
    )
    assert chunks[-1] == Usage(num_prompt_tokens=5, num_output_tokens=3, num_cached_tokens=2)


@pytest.mark.parametrize("position", range(6))
async def test_a_break_after_any_message_neither_loses_nor_repeats_a_token(position: int) -> None:
    fake = FakeInference(breaks=[Break(after_messages=position)])
    chunks = await chunks_of(fake, max_tokens=5)
    assert token_ids(chunks) == answer(5)
    assert sum(isinstance(chunk, Started) for chunk in chunks) == 1
    assert sum(isinstance(chunk, Finished) for chunk in chunks) == 1
    assert len(fake.requests) == 2


async def test_many_breaks_in_a_row_with_progress_between_are_survived() -> None:
    fake = FakeInference(breaks=[Break(after_messages=2)] * 11)
    assert token_ids(await chunks_of(fake, max_tokens=12)) == answer(12)
    assert len(fake.requests) == 12


async def test_c82_a_resume_sends_what_each_choice_got_and_the_first_seed() -> None:
    # Choice 0 of three ends one token early: here it has ended and the others have not.
    fake = FakeInference(breaks=[Break(after_messages=4)])
    chunks = await chunks_of(fake, max_tokens=4, n=3)
    resumed = fake.requests[1]
    assert resumed.sampling.seed == SEED
    assert resumed.request_id == "chosen-by-server"
    priors = [(p.index, tuple(p.token_ids), p.finished) for p in resumed.prior_output]
    assert priors == [
        (0, answer(3, index=0), True),
        (1, answer(3, index=1), False),
        (2, answer(3, index=2), False),
    ]
    assert [token_ids(chunks, index) for index in range(3)] == [
        answer(3, index=0),
        answer(4, index=1),
        answer(4, index=2),
    ]


async def test_a_resume_keeps_prompt_and_options() -> None:
    fake = FakeInference(breaks=[Break(after_messages=2)])
    await chunks_of(fake, "the prompt", max_tokens=3, seed=5, cache_salt="s", request_id="mine")
    first, second = fake.requests
    assert (second.text, second.cache_salt, second.request_id) == ("the prompt", "s", "mine")
    assert (second.sampling.max_tokens, second.sampling.seed) == (3, 5)
    assert not first.prior_output


@pytest.mark.parametrize(("position", "echoes_again"), [(1, True), (2, False)])
async def test_an_echoed_prompt_is_not_asked_for_twice(position: int, echoes_again: bool) -> None:  # noqa: FBT001
    fake = FakeInference(breaks=[Break(after_messages=position)])
    await chunks_of(fake, max_tokens=3, echo_prompt=True)
    assert fake.requests[0].echo_prompt
    assert fake.requests[1].echo_prompt is echoes_again


async def test_a_break_between_last_end_and_usage_needs_no_second_try() -> None:
    fake = FakeInference(breaks=[Break(after_messages=4)])
    chunks = await chunks_of(fake, max_tokens=3)
    assert chunks[-1] == Usage(num_prompt_tokens=5, num_output_tokens=3, num_cached_tokens=2)
    assert len(fake.requests) == 1


async def test_tries_without_progress_are_bounded() -> None:
    unanswered = FakeInference(breaks=[Break(after_messages=0)] * 50)
    with pytest.raises(errors.UnavailableError):
        await chunks_of(unanswered)
    assert len(unanswered.requests) == FAST.max_tries
    begun = FakeInference(breaks=[Break(after_messages=1)] * 50)
    with pytest.raises(errors.UnavailableError):
        await chunks_of(begun)
    assert len(begun.requests) == FAST.max_resumes


@pytest.mark.parametrize(
    "error",
    [
        errors.QueueFullError("full", retry_after_s=0.01),
        errors.InvalidRequestError("is in use", field="request_id"),
    ],
)
async def test_a_resumed_try_waits_for_room_and_for_its_own_ghost(error: Exception) -> None:
    assert isinstance(error, errors.OctavoError)
    fake = FakeInference(
        breaks=[Break(after_messages=2), Break(after_messages=0, error=error), None]
    )
    assert token_ids(await chunks_of(fake, max_tokens=3)) == answer(3)


@pytest.mark.parametrize(
    "error",
    [
        errors.QueueFullError("full"),
        errors.InvalidRequestError("bad", field="sampling.top_p"),
        errors.UnauthenticatedError("no key"),
        errors.NotFoundError("no such model"),
    ],
)
async def test_an_error_that_another_try_cannot_mend_is_raised_at_once(error: Exception) -> None:
    assert isinstance(error, errors.OctavoError)
    fake = FakeInference(breaks=[Break(after_messages=0, error=error)])
    with pytest.raises(type(error)):
        await chunks_of(fake)
    assert len(fake.requests) == 1


async def test_an_invalid_request_names_its_field_and_a_full_queue_its_pause() -> None:
    bad = errors.InvalidRequestError("must be at most 1", field="top_p")
    with pytest.raises(errors.InvalidRequestError, match="top_p: must be at most 1") as invalid:
        await chunks_of(FakeInference(breaks=[Break(after_messages=0, error=bad)]))
    assert invalid.value.field == "top_p"
    full = errors.QueueFullError("full", retry_after_s=2.5)
    with pytest.raises(errors.QueueFullError) as queue:
        await chunks_of(FakeInference(breaks=[Break(after_messages=0, error=full)]))
    assert queue.value.retry_after_s == 2.5


async def test_the_message_cap_of_grpc_is_not_taken_for_a_full_queue() -> None:
    fake = FakeInference(breaks=[Break(after_messages=0, code=grpc.StatusCode.RESOURCE_EXHAUSTED)])
    with pytest.raises(errors.TooLargeError):
        await chunks_of(fake)


async def test_a_value_of_the_wrong_kind_never_leaves_and_names_its_option() -> None:
    fake = FakeInference()
    for options in ({"max_tokens": -1}, {"top_k": "many"}, {"temprature": 1.0}):
        with pytest.raises(errors.InvalidRequestError) as error:
            await chunks_of(fake, **options)
        assert error.value.field == next(iter(options))
    assert not fake.requests


async def test_a_timeout_covers_all_tries() -> None:
    fake = FakeInference(breaks=[Break(after_messages=0)] * 50)
    slow = RetryPolicy(first_delay_s=30.0, max_delay_s=30.0)
    async with serve(fake) as address, Client(address, retries=slow) as client:
        with pytest.raises(errors.DeadlineError):
            await client.generate_text("p", timeout_s=5.0)


async def test_a_server_that_falls_silent_meets_the_timeout() -> None:
    with pytest.raises(errors.DeadlineError):
        await chunks_of(FakeInference(hang=True), timeout_s=0.2)


async def test_leaving_a_stream_cancels_it_on_the_server() -> None:
    fake = FakeInference(hang=True)
    async with serve(fake) as address, Client(address) as client:
        async with aclosing(client.generate("p")) as chunks:
            await anext(chunks)
        assert await asyncio.to_thread(fake.cancelled.wait, 10)


async def test_generate_text_gathers_every_choice() -> None:
    async with serve(FakeInference()) as address, Client(address) as client:
        generation = await client.generate_text([1, 2], n=2, max_tokens=3)
    assert [choice.token_ids for choice in generation.choices] == [
        answer(2, index=0),
        answer(3, index=1),
    ]
    assert generation.text == "".join(f"<{token}>" for token in answer(2))
    assert generation.choices[1].finished.reason == "length"
    assert generation.usage.num_output_tokens == 5


async def test_prompts_travel_as_text_token_ids_or_messages() -> None:
    fake = FakeInference()
    async with serve(fake) as address, Client(address) as client:
        await client.generate_text("text", stop=["a", "b"], logit_bias={7: -1.0})
        await client.generate_text([5, 6])
        await client.generate_text([Message(role="user", content="hi")])
    text, ids, messages = fake.requests
    assert text.text == "text"
    assert list(text.sampling.stop) == ["a", "b"]
    assert dict(text.sampling.logit_bias) == {7: -1.0}
    assert list(ids.token_ids.ids) == [5, 6]
    assert messages.messages.messages[0].content == "hi"


async def test_an_unset_option_is_not_sent() -> None:
    fake = FakeInference()
    await chunks_of(fake)
    assert not fake.requests[0].sampling.HasField("temperature")
    assert not fake.requests[0].sampling.HasField("seed")


async def test_unary_calls_answer_and_carry_the_key() -> None:
    fake = FakeInference()
    async with serve(fake) as address, Client(address, "secret") as client:
        assert await client.abort("known")
        assert not await client.abort("unknown")
        model = await client.model_info()
        assert (model.model, model.eos_token_ids, model.max_model_len) == ("fake", (2, 3), 64)
        assert (await client.server_info()).num_free_blocks == 9
        assert await client.tokenize("ab", add_special_tokens=True) == (1, 97, 98)
        turn = Message(role="user", content="x")
        assert await client.detokenize(await client.tokenize([turn])) == "user:x"
    assert {sent["authorization"] for sent in fake.metadata} == {"Bearer secret"}


async def test_unary_calls_outlive_a_short_outage_but_not_a_long_one() -> None:
    fake = FakeInference(unary_failures=FAST.max_tries - 1)
    async with serve(fake) as address, Client(address, retries=FAST) as client:
        assert await client.abort("known")
        fake.unary_failures = FAST.max_tries
        with pytest.raises(errors.UnavailableError):
            await client.abort("known")


async def test_an_address_where_nobody_listens_is_unavailable() -> None:
    async with Client("127.0.0.1:1", retries=FAST) as client:
        with pytest.raises(errors.UnavailableError):
            await client.generate_text("p")
