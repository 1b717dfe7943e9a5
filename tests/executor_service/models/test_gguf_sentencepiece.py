"""SentencePiece vocabularies of GGUF files: the ids that joining by score gives, and texts back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from common.errors import ModelError
from common.marked_spelling import unmarked
from executor_service.models.gguf_file import GGUFFile
from executor_service.models.gguf_sentencepiece import merges_of
from executor_service.models.gguf_spellings import distinct_spellings, unmarking
from executor_service.models.gguf_tokenizer import tokenizer_json
from tests.support.sentencepiece_bpe import BOS, EOS, encode, trained_fields
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_llama import tiny_model

FIELDS = trained_fields()


def read(fields: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(fields).decode())


TOKENIZER = read(FIELDS)
WITHOUT_SPACE = FIELDS | {"tokenizer.ggml.add_space_prefix": False}
TOKENIZER_WITHOUT_SPACE = read(WITHOUT_SPACE)

words = st.sampled_from(
    ["she", "sells", "sea", "shells", "the", "fox", "это", "Köln,", "où", "return", "1000"]
)
spaces = st.integers(0, 20).map(" ".__mul__)
odd = st.one_of(st.text(max_size=8), st.sampled_from(["\n", "\n\n", "\t", "😀", "漢字", "e\u0301"]))
same = st.tuples(st.sampled_from("a=-s0о"), st.integers(1, 20)).map(lambda run: run[0] * run[1])
texts = st.lists(st.one_of(words, spaces, odd, same), max_size=12).map("".join)
"""Without U+2581, which SentencePiece cannot tell from a space."""
texts = texts.filter(lambda text: "\u2581" not in text and "<" not in text)


@given(text=texts)
@settings(max_examples=500, deadline=None)
def test_ids_are_those_of_joining_by_score(text: str) -> None:
    assert TOKENIZER.encode(text, add_special_tokens=False).ids == encode(FIELDS, text)
    without = TOKENIZER_WITHOUT_SPACE.encode(text, add_special_tokens=False).ids
    assert without == encode(WITHOUT_SPACE, text)


@given(text=texts)
@settings(max_examples=500, deadline=None)
def test_texts_come_back(text: str) -> None:
    for tokenizer in (TOKENIZER, TOKENIZER_WITHOUT_SPACE):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@given(before=texts, after=texts)
@settings(max_examples=100, deadline=None)
def test_each_text_around_a_special_token_is_encoded_on_its_own(before: str, after: str) -> None:
    ids = TOKENIZER.encode(f"{before}</s>{after}", add_special_tokens=False).ids
    assert ids == [*encode(FIELDS, before), EOS, *encode(FIELDS, after)]


def test_it_reads_words_and_runs_of_spaces_as_pieces() -> None:
    pieces = TOKENIZER.encode("she sells    shells", add_special_tokens=False).tokens
    assert pieces == ["\u2581she", "\u2581sells", "\u2581" * 4, "she", "lls"]


def test_characters_of_no_piece_are_their_bytes() -> None:
    pieces = TOKENIZER_WITHOUT_SPACE.encode("\n漢", add_special_tokens=False).tokens
    assert pieces == ["<0x0A>", "<0xE6>", "<0xBC>", "<0xA2>"]


def test_without_byte_tokens_they_are_unknown() -> None:
    types = [5 if kind == 6 else kind for kind in FIELDS["tokenizer.ggml.token_type"]]
    tokens = [token.replace("<0x", "<0y") for token in FIELDS["tokenizer.ggml.tokens"]]
    fields = FIELDS | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert read(fields).encode("she漢字", add_special_tokens=False).tokens[1:] == ["<unk>"]


def test_scores_decide_not_the_order_of_tokens() -> None:
    scores = dict.fromkeys("abc", -9.0) | {"ab": -2.0, "bc": -1.0, "abc": -3.0}
    assert merges_of(scores) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]


def _with_token(token: str, score: float, kind: int) -> dict[str, Any]:
    return FIELDS | {
        "tokenizer.ggml.tokens": [*FIELDS["tokenizer.ggml.tokens"], token],
        "tokenizer.ggml.scores": [*FIELDS["tokenizer.ggml.scores"], score],
        "tokenizer.ggml.token_type": [*FIELDS["tokenizer.ggml.token_type"], kind],
    }


def test_text_never_joins_to_a_control_token() -> None:
    added = len(FIELDS["tokenizer.ggml.tokens"])
    control, normal = (read(_with_token("\u2581tx", 1.0, kind)) for kind in (3, 1))
    assert control.encode("tx", add_special_tokens=False).ids == encode(FIELDS, "tx")
    assert normal.encode("tx", add_special_tokens=False).ids == [added]


def test_a_user_defined_token_is_kept_whole_but_not_skipped() -> None:
    tokenizer = read(_with_token("<think>", -1000.0, 4))
    think = len(FIELDS["tokenizer.ggml.tokens"])
    assert tokenizer.encode("the<think>the", add_special_tokens=False).ids[1] == think
    assert tokenizer.decode([think]) == "<think>"


def _with_repeats(*texts: str) -> dict[str, Any]:
    """Texts that the vocabulary has get one more id each, at its end; else they are the same."""
    places = [FIELDS["tokenizer.ggml.tokens"].index(text) for text in texts]
    columns = (f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type"))
    return FIELDS | {key: FIELDS[key] + [FIELDS[key][i] for i in places] for key in columns}


def test_a_text_with_several_ids_comes_back_from_each() -> None:
    repeated = ["\u2581she", "\u2581she", "lls", "<0x0A>", "</s>"]
    tokenizer, first = read(_with_repeats(*repeated)), len(FIELDS["tokenizer.ggml.tokens"])
    for token_id, text in enumerate(repeated, start=first):
        known = FIELDS["tokenizer.ggml.tokens"].index(text)
        for skip in (True, False):
            expected = TOKENIZER.decode([known, known], skip_special_tokens=skip)
            assert tokenizer.decode([known, token_id], skip_special_tokens=skip) == expected
    assert tokenizer.get_vocab_size() == first + len(repeated)


def test_one_text_of_many_ids_is_spelled_shortly_for_each() -> None:
    spellings = distinct_spellings(["a"] * 8000, [])
    assert len(set(spellings)) == 8000
    assert max(map(len, spellings)) < 10
    assert {unmarked(spelling) for spelling in spellings} == {"a"}


@pytest.mark.parametrize("text", ["\ufdd0", "\ufde0", "a\ufdd0", "a\ufdd0\ufdd0", ""])
def test_a_text_of_the_mark_s_characters_stays_itself(text: str) -> None:
    spellings = distinct_spellings([text] * 20, [])
    assert {unmarked(spelling) for spelling in spellings} == {text}
    assert {unmarking().decode([spelling]) for spelling in spellings} == {text}


def test_a_prompt_s_text_becomes_the_last_of_its_ids() -> None:
    fields, first = (
        _with_repeats("\u2581she", "lls", "<0x0A>"),
        len(FIELDS["tokenizer.ggml.tokens"]),
    )
    ids = read(fields).encode("she    shells\n", add_special_tokens=False).ids
    assert ids == encode(fields, "she    shells\n")
    assert {first, first + 1, first + 2} <= set(ids)


def test_but_the_one_that_the_file_names() -> None:
    tokenizer = read(_with_repeats("<s>", "</s>"))
    assert tokenizer.encode("<s>the</s>").ids == [BOS, BOS, *encode(FIELDS, "the"), EOS]


def test_prompts_begin_with_bos_unless_the_file_says_otherwise() -> None:
    inner = encode(FIELDS, "the fox")
    assert TOKENIZER.encode("the fox").ids == [BOS, *inner]
    without = read(FIELDS | {"tokenizer.ggml.add_bos_token": False})
    assert without.encode("the fox").ids == inner
    with_eos = read(FIELDS | {"tokenizer.ggml.add_eos_token": True})
    assert with_eos.encode("the fox").ids == [BOS, *inner, EOS]


def test_ids_of_special_tokens_have_sentencepieces_defaults() -> None:
    ids = ("bos_token_id", "eos_token_id", "unknown_token_id")
    fields = {key: value for key, value in FIELDS.items() if key.rpartition(".")[2] not in ids}
    assert tokenizer_json(fields) == tokenizer_json(FIELDS)


@pytest.mark.parametrize("none", [-1, 2**32 - 1])
def test_an_id_of_none_is_no_end_and_the_default_unknown_token(none: int) -> None:
    said = dict.fromkeys(("bos_token_id", "eos_token_id", "unknown_token_id"), none)
    said |= {"add_bos_token": True, "add_eos_token": True}
    without = read(FIELDS | {f"tokenizer.ggml.{key}": value for key, value in said.items()})
    assert without.encode("the fox").ids == encode(FIELDS, "the fox")
    assert without.model.unk_token == TOKENIZER.model.unk_token == "<unk>"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scores": None}, "scores"),
        ({"tokens": None}, "tokens"),
        ({"scores": [0.0]}, "differ in number"),
        ({"bos_token_id": 10**6}, "bos_token_id"),
        ({"bos_token_id": -2}, "bos_token_id"),
        ({"unknown_token_id": 10**6}, "unknown_token_id .* is 1000000, .* correct the field"),
        ({"unknown_token_id": "<unk>"}, "unknown_token_id .* is '<unk>', .* correct the field"),
        ({"unknown_token_id": [0]}, "unknown_token_id"),
        ({"unknown_token_id": 0.5}, "unknown_token_id"),
        ({"unknown_token_id": False}, "unknown_token_id"),
    ],
)
def test_broken_fields_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    fields = FIELDS | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    fields = {key: value for key, value in fields.items() if value is not None}
    with pytest.raises(ModelError, match=reason):
        tokenizer_json(fields)


# No space in front: there transformers adds none of its own, while SentencePiece does.
TEXTS = [
    "",
    "she sells sea shells",
    "two  spaces    four ",
    "def f(x):\n    return x ** 2\n",
    "Straße, это не то. 漢字 😀",
    "100000 aaaaaaaaaaaa ==========",
]


def test_transformers_reads_such_a_file_alike(tmp_path: Path) -> None:
    fields = trained_fields(40)
    size = len(fields["tokenizer.ggml.tokens"])
    absent = {"tokenizer.ggml.merges": None, "tokenizer.chat_template": None}
    path = write_gguf(
        tiny_model("llama", vocab_size=size), tmp_path / "m.gguf", fields=fields | absent
    )
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    ours = read(GGUFFile(path).fields)
    for text in TEXTS:
        ids = ours.encode(text).ids
        assert ids == theirs(text).input_ids, repr(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
