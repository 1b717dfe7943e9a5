"""Pieces, joined, are what decoding everything at once gives; characters come whole."""

from __future__ import annotations

import time
from itertools import accumulate

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from executor_service.models.gguf_tokenizer import tokenizer_json
from scheduler_service.api.detokenizer import new_detokenizer, text_of
from scheduler_service.api.token_bytes import fallback_byte
from scheduler_service.api.tokenizer import Decoding, Tokenizer
from tests.support.sentencepiece_bpe import trained_fields
from tests.support.smol_files import VOCAB_SIZE, smol_files
from tests.support.tiny_tokenizers import (
    NUM_SPECIAL,
    WORDS,
    byte_fallback_tokenizer,
    byte_id,
    metaspace_tokenizer,
    word_id,
)

SMOL = Tokenizer(smol_files()["tokenizer.json"])
LLAMA = Tokenizer(byte_fallback_tokenizer())
METASPACE = Tokenizer(metaspace_tokenizer())

TEXTS = (
    "   three spaces first,    .  and a full stop after a run",
    "def f(x):\n\treturn {'a': x}  # comment\r\n\n\n",
    "family 👨‍👩‍👧‍👦 flag 🏴󠁧󠁢󠁳󠁣󠁴󠁿 skin 👍🏽",
    "한국어 텍스트는 음절이 빠지면 안 됩니다",
    "中文字符不能丢失，标点也一样。",
    "Zażółć gęślą jaźń — ¿qué? ½ × ∑",
    "العربية עברית ไทย हिन्दी",
    "e\u0301 combining, \u200b zero width, \ufffd a real replacement character",
)

# Ids of SmolLM2 that are single bytes or pieces of characters are rare: most of the time, pick
# from the low ids, where they are.
smol_ids = st.lists(
    st.one_of(st.integers(17, 260), st.integers(0, VOCAB_SIZE - 1), st.integers(0, 16)),
    max_size=40,
)


def pieces_of(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> list[str]:
    detokenizer = new_detokenizer(tokenizer, skip_special_tokens=skip)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@given(ids=smol_ids, skip=st.booleans())
@settings(max_examples=500, deadline=None)
def test_c46_pieces_join_to_the_one_shot_decode(ids: list[int], *, skip: bool) -> None:
    joined = "".join(pieces_of(SMOL, ids, skip=skip))
    assert joined == SMOL.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("text", TEXTS)
async def test_c38_real_text_comes_back_and_never_broken(text: str, *, skip: bool) -> None:
    ids = [1, *await SMOL.encode(text, add_special_tokens=False), 2]
    pieces = pieces_of(SMOL, ids, skip=skip)
    assert "".join(pieces) == SMOL.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@given(text=st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_a_character_comes_with_the_token_that_completes_it(text: str) -> None:
    ids = SMOL._encode([text], add_special_tokens=False)[0]
    assume(SMOL.decode(ids, skip_special_tokens=True) == text)  # it lacks some lead bytes
    pieces = pieces_of(SMOL, ids, skip=True)
    for count, shown in enumerate(accumulate(pieces[:-1]), start=1):
        decoded = SMOL.decode(ids[:count], skip_special_tokens=True)
        complete = decoded if decoded == text[: len(decoded)] else decoded.rstrip("\ufffd")
        assert shown == complete


llama_ids = st.lists(
    st.one_of(
        st.integers(0, 2),
        st.integers(3, 258),
        st.integers(byte_id(0), byte_id(0x7F)),
        st.sampled_from(sorted(map(word_id, WORDS))),
    ),
    max_size=50,
)


def llama_text(ids: list[int], *, skip: bool) -> str:
    """Runs of bytes end with ASCII, where all before them is valid; a broken run is U+FFFDs."""
    texts: list[str] = []
    run = b""
    for token_id in [*ids, None]:
        entry = "" if token_id is None else LLAMA.token(token_id) or ""
        if skip and token_id in LLAMA.special_ids:
            continue
        byte = fallback_byte(entry)
        if byte is not None:
            run += bytes([byte])
            if byte >= 0x80 or not is_utf8(run):
                continue
        texts.append(run.decode() if is_utf8(run) else "\ufffd" * len(run))
        run = b""
        texts.append(entry.replace("\u2581", " ") if byte is None else "")
    return "".join(texts)


def is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(ids=llama_ids, skip=st.booleans())
@settings(max_examples=500, deadline=None)
@example(ids=[word_id("\u2581he"), 1, word_id("\u2581wor")], skip=True)
@example(ids=[1, word_id("\u2581he")], skip=False)
@example(ids=[byte_id(0x0A), word_id("\u2581he")], skip=True)
@example(ids=[byte_id(0x0A), byte_id(0xFF)], skip=True)
@example(ids=[byte_id(byte) for byte in "\u4e2d".encode() * 20] + [word_id("\u2581")], skip=True)
def test_byte_fallback_pieces_join_to_the_one_shot_decode(ids: list[int], *, skip: bool) -> None:
    joined = "".join(pieces_of(LLAMA, ids, skip=skip))
    assert joined == llama_text(ids, skip=skip).removeprefix(" ")
    if "\ufffd" not in joined:
        assert joined == LLAMA.decode(ids, skip_special_tokens=skip)


@given(prompt=llama_ids, ids=llama_ids, skip=st.booleans())
@settings(max_examples=500, deadline=None)
@example(prompt=[word_id("a")], ids=[word_id("\u2581he")], skip=True)
@example(prompt=[word_id("a"), byte_id(0x0A)], ids=[word_id("\u2581he")], skip=True)
@example(prompt=[byte_id(0x0A)], ids=[word_id("\u2581he")], skip=True)
@example(prompt=[1], ids=[word_id("\u2581he")], skip=True)
def test_a_continuation_keeps_the_space_of_its_first_word(
    prompt: list[int], ids: list[int], *, skip: bool
) -> None:
    detokenizer = new_detokenizer(LLAMA, skip_special_tokens=skip, prompt=prompt)
    expected = llama_text(ids, skip=skip)
    if not llama_text(prompt, skip=skip):
        expected = expected.removeprefix(" ")
    assert text_of(detokenizer, ids) == expected


def test_metaspace_keeps_the_space_after_a_prompt() -> None:
    he, letter = METASPACE.token_id("\u2581he"), METASPACE.token_id("a")
    assert he is not None
    assert letter is not None
    detokenizer = new_detokenizer(METASPACE, skip_special_tokens=True, prompt=[letter])
    assert text_of(detokenizer, [he]) == " he"


def test_a_line_end_that_is_a_byte_comes_at_once() -> None:
    ids = [word_id("a"), byte_id(0x0A), byte_id(0x0A), word_id("a")]
    assert pieces_of(LLAMA, ids, skip=True) == ["a", "\n", "\n", "a", ""]


@given(ids=st.lists(st.integers(0, 2 + len(WORDS)), max_size=60), skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_metaspace_pieces_join_to_the_one_shot_decode(ids: list[int], *, skip: bool) -> None:
    joined = "".join(pieces_of(METASPACE, ids, skip=skip))
    assert joined == METASPACE.decode(ids, skip_special_tokens=skip)


def test_c38_a_lone_invalid_byte_stalls_nothing_behind_the_next_token() -> None:
    ids = [byte for byte in range(17, 260) if SMOL.token_bytes(byte) == b"\xc3"]
    lead, letter = ids[0], SMOL.token_id("a")
    assert letter is not None
    assert pieces_of(SMOL, [lead, letter, letter], skip=True) == ["", "\ufffda", "a", ""]


def test_invalid_fallback_bytes_come_out_at_once() -> None:
    ids = [byte_id(0xFF), byte_id(0xFE), word_id("a")]
    assert pieces_of(LLAMA, ids, skip=True) == ["\ufffd", "\ufffd", "a", ""]


def test_a_text_spelt_in_bytes_alone_still_streams() -> None:
    ids = [byte_id(byte) for byte in ("中文" * 40).encode()]
    pieces = pieces_of(LLAMA, ids, skip=True)
    assert "".join(pieces) == "中文" * 40
    assert sum(map(bool, pieces)) > 5
    assert "\ufffd" not in "".join(pieces)


def test_bytes_that_have_two_ids_each_are_bytes_by_either() -> None:
    fields = trained_fields()
    for name in ("tokens", "scores", "token_type"):
        column = fields[f"tokenizer.ggml.{name}"]
        column += column[NUM_SPECIAL : NUM_SPECIAL + 256]
    tokenizer = Tokenizer(tokenizer_json(fields))
    second = len(fields["tokenizer.ggml.tokens"]) - 256
    ids = [first + byte for byte in "\u4e2d".encode() for first in (second, NUM_SPECIAL)]
    assert "".join(pieces_of(tokenizer, ids[::2], skip=True)) == "\u4e2d"
    assert "".join(pieces_of(tokenizer, ids[1::2], skip=True)) == "\u4e2d"


def test_held_bytes_come_at_the_end() -> None:
    detokenizer = new_detokenizer(SMOL, skip_special_tokens=True)
    ids = SMOL._encode(["😀"], add_special_tokens=False)[0]
    assert [detokenizer.push(token_id) for token_id in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.flush() == SMOL.decode(ids[:-1], skip_special_tokens=True)


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    for tokenizer in (SMOL, LLAMA):
        detokenizer = new_detokenizer(tokenizer, skip_special_tokens=False)
        assert text_of(detokenizer, [10**6, 10**6 + 1]) == ""


def test_families_are_told_apart() -> None:
    assert SMOL.decoding is Decoding.BYTE_LEVEL
    assert LLAMA.decoding is METASPACE.decoding is Decoding.OTHER


@pytest.mark.parametrize("tokenizer", [SMOL, LLAMA], ids=["byte level", "byte fallback"])
def test_the_last_of_many_tokens_costs_what_the_first_did(tokenizer: Tokenizer) -> None:
    detokenizer = new_detokenizer(tokenizer, skip_special_tokens=True)
    ids = [200, 262, 263, 264] * 250

    def seconds() -> float:
        start = time.perf_counter()
        for token_id in ids:
            detokenizer.push(token_id)
        return time.perf_counter() - start

    seconds()
    first = min(seconds() for _ in range(3))
    for _ in range(20):
        seconds()
    assert min(seconds() for _ in range(3)) < 5 * first
