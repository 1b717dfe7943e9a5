"""Lengths against the context, seeds, deadlines."""

from __future__ import annotations

import dataclasses
import time
from array import array

import pytest
from msgspec import structs

from common.errors import DeadlineError, InvalidRequestError
from scheduler_service.api.served_model import ServedModel, load_served_model
from scheduler_service.api.submission import prepare
from tests.scheduler_service.api.builders import make_request
from tests.scheduler_service.api.conftest import model_ready
from tests.support.tiny_tokenizers import byte_fallback_tokenizer


@pytest.fixture
def short_model(model: ServedModel) -> ServedModel:
    """A context of 64 tokens."""
    return dataclasses.replace(model, info=structs.replace(model.info, max_model_len=64))


@pytest.mark.parametrize(
    ("length", "max_tokens", "taken"),
    [(63, None, None), (62, 2, 2), (62, 1, 1), (63, 1, 1), (1, 63, 63), (10, None, None)],
)
async def test_c74_what_fits_is_taken(
    short_model: ServedModel, length: int, max_tokens: int | None, taken: int | None
) -> None:
    request = make_request([300] * length, max_tokens=max_tokens)
    (submission,) = await prepare(request, short_model, 0.0)
    assert len(submission.prompt_token_ids) == length
    assert submission.max_tokens == taken


@pytest.mark.parametrize(
    ("length", "max_tokens", "field", "numbers"),
    [
        (62, 10, "max_tokens", ("10", "62", "64", "2")),
        (63, 2, "max_tokens", ("2", "63", "64", "1")),
        (64, None, "prompt", ("64", "63")),
        (64, 1, "prompt", ("64", "63")),
        (65, None, "prompt", ("65", "64")),
        (200, 10, "prompt", ("200", "64")),
    ],
)
async def test_c74_what_does_not_fit_is_refused_with_both_numbers(
    short_model: ServedModel,
    length: int,
    max_tokens: int | None,
    field: str,
    numbers: tuple[str, ...],
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        await prepare(make_request([300] * length, max_tokens=max_tokens), short_model, 0.0)
    assert raised.value.field == field
    words = str(raised.value).replace(";", " ").split()
    assert all(number in words for number in numbers)
    assert "-" not in str(raised.value)


async def test_a_default_is_cut_to_what_fits(short_model: ServedModel) -> None:
    request = make_request([300] * 60, default_max_tokens=16)
    (submission,) = await prepare(request, short_model, 0.0)
    assert submission.max_tokens == 4


async def test_megabytes_are_refused_without_tokenizing(short_model: ServedModel) -> None:
    with pytest.raises(InvalidRequestError, match="at least") as raised:
        await prepare(make_request("word " * 10**6), short_model, 0.0)
    assert raised.value.field == "prompt"


async def test_one_prompt_that_is_too_long_fails_all(short_model: ServedModel) -> None:
    with pytest.raises(InvalidRequestError):
        await prepare(make_request("a", [300] * 70, "b"), short_model, 0.0)


@pytest.mark.parametrize("prompt", ["", []])
async def test_an_empty_prompt_is_refused(short_model: ServedModel, prompt: object) -> None:
    with pytest.raises(InvalidRequestError, match="no tokens") as raised:
        await prepare(make_request(prompt), short_model, 0.0)  # type: ignore[arg-type]
    assert raised.value.field == "prompt"


async def test_texts_and_ids_keep_their_places(short_model: ServedModel) -> None:
    request = make_request("Hello", [5, 6], " world", [7])
    submissions = await prepare(request, short_model, 0.0)
    ids = [list(submission.prompt_token_ids) for submission in submissions]
    assert (ids[1], ids[3]) == ([5, 6], [7])
    assert short_model.tokenizer.decode(ids[0] + ids[2], skip_special_tokens=True) == "Hello world"
    assert [s.prompt_text for s in submissions] == ["Hello", None, " world", None]
    assert len({submission.request_id for submission in submissions}) == 4


async def test_bos_is_added_to_a_text_by_the_models_rule_and_never_twice() -> None:
    files = {"tokenizer.json": byte_fallback_tokenizer(adds_bos=True)}
    model = await load_served_model(model_ready(files=files, vocab_size=300), None)
    (text,) = await prepare(make_request("a"), model, 0.0)
    (rendered,) = await prepare(make_request("<s>a", add_special_tokens=False), model, 0.0)
    assert text.prompt_token_ids == rendered.prompt_token_ids
    assert list(text.prompt_token_ids).count(1) == 1


async def test_a_tokenizer_beyond_the_model_is_refused_not_sent(model: ServedModel) -> None:
    model = dataclasses.replace(model, info=structs.replace(model.info, vocab_size=1000))
    with pytest.raises(InvalidRequestError, match="does not have") as raised:
        await prepare(make_request("Gertrude Umay"), model, 0.0)
    assert raised.value.field == "prompt"


async def test_unseeded_prompts_get_seeds_of_their_own(short_model: ServedModel) -> None:
    unseeded = await prepare(make_request("a", "a", has_seed=False), short_model, 0.0)
    assert unseeded[0].params.seed != unseeded[1].params.seed
    assert all(0 <= submission.params.seed < 2**64 for submission in unseeded)
    seeded = await prepare(make_request("a", "a"), short_model, 0.0)
    assert seeded[0].params.seed == seeded[1].params.seed == 0


async def test_the_deadline_counts_from_arrival(short_model: ServedModel) -> None:
    now = time.monotonic()
    (submission,) = await prepare(make_request("a", timeout_s=10.0), short_model, now - 4.0)
    timeout_s = submission.to_submit(1, ()).timeout_s
    assert timeout_s is not None
    assert 5.0 < timeout_s <= 6.0
    (late,) = await prepare(make_request("a", timeout_s=1.0), short_model, now - 4.0)
    with pytest.raises(DeadlineError):
        late.to_submit(1, ())


async def test_only_an_echo_is_not_worth_a_step(short_model: ServedModel) -> None:
    (echo,) = await prepare(make_request("a", max_tokens=0, echo=True), short_model, 0.0)
    assert not echo.runs
    scored = make_request("a", max_tokens=0, echo=True, num_prompt_logprobs=1)
    (submission,) = await prepare(scored, short_model, 0.0)
    assert submission.runs
    assert submission.to_submit(1, ()).max_tokens == 1


async def test_a_submit_holds_all_that_was_asked(short_model: ServedModel) -> None:
    request = make_request(
        [5, 6], n=3, max_tokens=7, stop_token_ids=(9, 8), priority=4, cache_salt="salt"
    )
    (submission,) = await prepare(request, short_model, 0.0)
    submit = submission.to_submit(11, ((1, b"\x01\x00\x00\x00"),))
    assert submit.handle == 11
    assert array("i", submit.prompt_token_ids).tolist() == [5, 6]
    assert (submit.n, submit.max_tokens, submit.priority, submit.cache_salt) == (3, 7, 4, "salt")
    assert submit.eos_token_ids == (2,)
    assert submit.stop_token_ids == (8, 9)
    assert submit.params.stop_token_ids == (2, 8, 9)
    assert submit.prior_outputs == ((1, b"\x01\x00\x00\x00"),)
    assert submit.timeout_s is None
