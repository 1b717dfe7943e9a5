"""One choice's tokens become text, ids, logprobs and one end."""

from __future__ import annotations

from typing import Any

import pytest

from common.plan import TokenLogprobs
from scheduler_service.api.choice import Choice, Delta
from scheduler_service.api.tokenizer import Tokenizer
from scheduler_service.engine.messages import Finished
from tests.scheduler_service.api.builders import make_request
from tests.support.smol_files import IM_END
from tests.support.tiny_tokenizers import byte_fallback_tokenizer, byte_id, word_id

WHITE = "red, green, blue, black, white, pink,"


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer._encode([text], add_special_tokens=False)[0]


def finished(reason: Any, count: int, **more: Any) -> Finished:
    return Finished(1, 0, reason, count, **more)


def run(choice: Choice, ids: list[int], end: Finished | None = None) -> Delta:
    for token_id in ids:
        choice.push(token_id)
    if end is not None:
        choice.finish(end)
    return choice.take()


def test_c40_text_that_might_begin_a_stop_string_is_delivered_at_other_ends(
    tokenizer: Tokenizer,
) -> None:
    for text, stop in (("EINS ZWEI DREI", "DREI\nXXXX"), ("<", "<|end|>")):
        ids = ids_of(tokenizer, text)
        request = make_request(stop=[stop])
        at_eos = run(Choice(0, request, tokenizer), [*ids, IM_END], finished("stop", len(ids) + 1))
        at_length = run(Choice(0, request, tokenizer), ids, finished("length", len(ids)))
        assert at_eos.text == at_length.text == text
        assert at_eos.end == ("stop", len(ids) + 1, None, "")
        assert at_length.end == ("length", len(ids), None, "")


def test_c41_nothing_after_a_stop_string_is_kept(tokenizer: Tokenizer) -> None:
    choice = Choice(0, make_request(stop=["white"]), tokenizer)
    delta = run(choice, ids_of(tokenizer, WHITE), finished("length", 99))
    assert delta.text == "red, green, blue, black, "
    count = len(ids_of(tokenizer, "red, green, blue, black, white"))
    assert delta.token_ids == ids_of(tokenizer, WHITE)[:count]
    assert delta.end == ("stop", count, "white", "")
    assert choice.num_output_tokens == count
    assert choice.take() == Delta(0)


def test_the_stop_string_itself_is_kept_on_demand(tokenizer: Tokenizer) -> None:
    request = make_request(stop=["white"], include_stop_str_in_output=True)
    delta = run(Choice(0, request, tokenizer), ids_of(tokenizer, WHITE))
    assert delta.text == "red, green, blue, black, white"


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, " white black white pink")
    assert len(ids) == 4
    choice = Choice(0, make_request(stop=["white"], min_tokens=2), tokenizer)
    delta = run(choice, ids)
    assert delta.text == " white black "
    assert delta.end == ("stop", 3, "white", "")


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("skip", [True, False])
def test_c47_the_text_of_a_stop_token_is_kept_only_on_demand(
    tokenizer: Tokenizer, *, special: bool, include: bool, skip: bool
) -> None:
    stop_id = 5 if special else ids_of(tokenizer, " blue")[0]
    ids = [*ids_of(tokenizer, " red green"), stop_id]
    request = make_request(
        stop_token_ids=[stop_id], include_stop_str_in_output=include, skip_special_tokens=skip
    )
    end = finished("stop", 3, stop_token_id=stop_id)
    delta = run(Choice(0, request, tokenizer), ids, end)
    shown = tokenizer.decode(ids if include else ids[:-1], skip_special_tokens=skip)
    assert delta.text == shown
    assert delta.token_ids == ids
    assert delta.end == ("stop", 3, stop_id, "")


def test_an_ending_token_that_ended_nothing_is_text(tokenizer: Tokenizer) -> None:
    blue = ids_of(tokenizer, " blue")[0]
    ids = [blue, *ids_of(tokenizer, " sky"), blue]
    choice = Choice(0, make_request(stop_token_ids=[blue]), tokenizer)
    assert run(choice, ids, finished("length", 3)).text == " blue sky blue"


def test_eos_inside_held_bytes_flushes_them(tokenizer: Tokenizer) -> None:
    partial = ids_of(tokenizer, "😀")[:-1]
    choice = Choice(0, make_request(), tokenizer)
    delta = run(choice, [*partial, IM_END], finished("stop", len(partial) + 1))
    assert delta.text == "\ufffd"


def test_each_delta_is_told_once_and_the_end_with_the_last(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "one two three")
    choice = Choice(3, make_request(), tokenizer)
    deltas = [run(choice, [token_id]) for token_id in ids]
    last = run(choice, [], finished("length", len(ids)))
    assert "".join(delta.text for delta in deltas) == "one two three"
    assert [token_id for delta in deltas for token_id in delta.token_ids] == ids
    assert all(delta.end is None and delta.index == 3 for delta in deltas)
    assert last.end is not None
    assert choice.take().end is None


def test_no_text_is_made_when_none_is_wanted(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, WHITE)
    silent = run(Choice(0, make_request(return_text=False), tokenizer), ids)
    assert (silent.text, silent.token_ids) == ("", ids)
    stopped = run(Choice(0, make_request(return_text=False, stop=["green"]), tokenizer), ids)
    assert stopped.end is not None
    assert stopped.end.stop_reason == "green"


def entries_of(tokenizer: Tokenizer, ids: list[int], **request: Any) -> Delta:
    choice = Choice(0, make_request(num_logprobs=1, **request), tokenizer)
    for token_id in ids:
        choice.push(token_id, TokenLogprobs(1, (token_id, 7), (-1.0, -1.0)))
    choice.finish(finished("length", len(ids)))
    return choice.take()


def test_pieces_of_logprobs_join_to_the_text(tokenizer: Tokenizer) -> None:
    text = "emoji 👨‍👩‍👧 한국어 end"
    delta = entries_of(tokenizer, ids_of(tokenizer, text))
    assert "".join(entry.piece for entry in delta.entries) == delta.text == text
    assert len(delta.entries) == len(delta.token_ids)
    for entry in delta.entries:
        assert text[entry.text_offset :].startswith(entry.piece)
    offsets = [entry.text_offset for entry in delta.entries]
    assert offsets == sorted(offsets)


def test_logprobs_end_where_the_tokens_do(tokenizer: Tokenizer) -> None:
    delta = entries_of(tokenizer, ids_of(tokenizer, WHITE), stop=["white"])
    assert len(delta.entries) == len(delta.token_ids)
    assert "".join(entry.piece for entry in delta.entries) == delta.text + "white"


def test_a_token_left_out_of_the_text_has_its_name_as_piece(tokenizer: Tokenizer) -> None:
    ids = [*ids_of(tokenizer, " a"), 5, *ids_of(tokenizer, " b"), IM_END]
    delta = entries_of(tokenizer, ids)
    assert [entry.piece for entry in delta.entries] == [" a", "<file_sep>", " b", "<|im_end|>"]
    assert [entry.text_offset for entry in delta.entries] == [0, 2, 2, 4]


def test_replayed_outputs_are_not_told_again_but_count(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, WHITE)
    for cut in range(len(ids)):
        first = Choice(0, make_request(stop=["white"]), tokenizer)
        before = run(first, ids[:cut])
        second = Choice(0, make_request(stop=["white"]), tokenizer)
        second.replay(ids[:cut])
        after = run(second, ids[cut:]) if before.end is None else second.take()
        assert before.text + after.text == "red, green, blue, black, "
        assert second.num_output_tokens == len(ids_of(tokenizer, "red, green, blue, black, white"))
        assert after.end is not None
        assert after.end.stop_reason == "white"


def test_a_stop_string_of_a_byte_stops_at_the_byte() -> None:
    llama = Tokenizer(byte_fallback_tokenizer())
    choice = Choice(0, make_request(stop=["\n"]), llama)
    ids = [word_id("\u2581he"), word_id("llo"), byte_id(0x0A), word_id("a")]
    delta = run(choice, ids, finished("length", len(ids)))
    assert (delta.text, delta.token_ids) == ("hello", ids[:3])
    assert delta.end == ("stop", 3, "\n", "")


def test_a_stop_string_spans_words_and_bytes_of_a_byte_fallback_vocabulary() -> None:
    llama = Tokenizer(byte_fallback_tokenizer())
    stop = "llo \u6f22"
    words = [word_id("\u2581he"), word_id("llo"), word_id("\u2581")]
    ids = [*words, *(byte_id(byte) for byte in "\u6f22".encode()), word_id("a")]
    delta = run(Choice(0, make_request(stop=[stop]), llama), ids, finished("length", len(ids)))
    assert delta.text == "he"
    assert delta.end == ("stop", len(ids), stop, "")


def test_a_first_word_keeps_its_space_after_the_prompts_text() -> None:
    llama = Tokenizer(byte_fallback_tokenizer())
    words = [word_id("\u2581wor"), word_id("ld")]
    for prompt, stop, text in (
        ([1, word_id("a")], [], " world"),
        ([1], [], "world"),
        ([1, word_id("a")], [" w"], ""),
    ):
        choice = Choice(0, make_request(stop=stop), llama, prompt)
        assert run(choice, words, finished("length", 2)).text == text
