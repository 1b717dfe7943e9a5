from __future__ import annotations

import json

import pytest

from common.errors import InvalidRequestError, ModelError
from common.marked_spelling import marked
from scheduler_service.api.tokenizer import Tokenizer
from tests.support.smol_files import IM_END, IM_START, smol_files
from tests.support.tiny_tokenizers import byte_fallback_tokenizer, byte_id, word_id


async def test_special_tokens_are_added_only_on_the_callers_word() -> None:
    tokenizer = Tokenizer(byte_fallback_tokenizer(adds_bos=True))
    assert (await tokenizer.encode("a", add_special_tokens=True))[0] == 1
    assert (await tokenizer.encode("a", add_special_tokens=False)) == [word_id("a")]
    assert (await tokenizer.encode("<s>a", add_special_tokens=False)) == [1, word_id("a")]


async def test_long_texts_encode_like_short_ones(tokenizer: Tokenizer) -> None:
    text = "The quick brown fox. " * 500
    ids = await tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    batch = await tokenizer.encode_batch([text, "a", ""], add_special_tokens=False)
    assert [len(batch[0]), len(batch[1]), batch[2]] == [len(ids), 1, []]


async def test_a_saved_limit_never_cuts_a_prompt() -> None:
    saved = json.loads(smol_files()["tokenizer.json"])
    saved["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tokenizer = Tokenizer(json.dumps(saved).encode())
    assert len(await tokenizer.encode("one two three four five six", add_special_tokens=True)) == 6


async def test_a_lone_surrogate_is_the_clients_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        await tokenizer.encode("a\ud800b", add_special_tokens=True)
    assert raised.value.field == "prompt"


def test_token_bytes_of_a_text_join_to_it(tokenizer: Tokenizer) -> None:
    text = "naïve 🗼 漢字\n"
    ids = tokenizer._encode([text], add_special_tokens=False)[0]
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_bytes(IM_END) == b"<|im_end|>"
    assert tokenizer.token_bytes(10**7) == b""


def test_token_bytes_of_a_byte_fallback_vocabulary() -> None:
    tokenizer = Tokenizer(byte_fallback_tokenizer())
    assert tokenizer.token_bytes(byte_id(0xE4)) == b"\xe4"
    assert tokenizer.token_bytes(word_id("\u2581he")) == b" he"


def test_a_marked_entry_is_its_text() -> None:
    saved = json.loads(byte_fallback_tokenizer())
    vocabulary = saved["model"]["vocab"]
    first = len(vocabulary)
    vocabulary |= {marked("\u2581he", 1): first, marked("<0xE4>", 200): first + 1}
    tokenizer = Tokenizer(json.dumps(saved).encode())
    assert tokenizer.token(first) == "\u2581he"
    assert tokenizer.token_bytes(first) == b" he"
    assert tokenizer.token_bytes(first + 1) == b"\xe4"


def test_marks_make_no_token_longer() -> None:
    saved = json.loads(byte_fallback_tokenizer())
    vocabulary = saved["model"]["vocab"]
    longest = max(map(len, vocabulary))
    repeated = max(vocabulary, key=len)
    vocabulary |= {marked(repeated, i): len(vocabulary) + i for i in range(200)}
    assert Tokenizer(json.dumps(saved).encode()).longest_token_chars == longest


def test_a_plain_token_is_neither_byte_nor_space() -> None:
    assert Tokenizer(byte_fallback_tokenizer()).plain_id == word_id("\u2581he")


def test_special_ids_are_those_that_can_be_skipped(tokenizer: Tokenizer) -> None:
    assert {0, IM_START, IM_END} <= tokenizer.special_ids
    assert tokenizer.decode(sorted(tokenizer.special_ids), skip_special_tokens=True) == ""
    assert not tokenizer.is_special(300)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": 1}', b"\xff"])
def test_an_unreadable_file_is_a_model_error(content: bytes) -> None:
    with pytest.raises(ModelError, match="tokenizer.json"):
        Tokenizer(content)
