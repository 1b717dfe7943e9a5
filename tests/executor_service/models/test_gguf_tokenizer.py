"""tokenizer.json from a GGUF file gives the ids that transformers' conversion gives."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from common.errors import ModelError
from executor_service.models.gguf_file import GGUFFile
from executor_service.models.gguf_tokenizer import tokenizer_json
from executor_service.models.source import SMOLLM2_ALIAS, locate
from tests.support.tiny_gguf import tokenizer_fields, write_gguf
from tests.support.tiny_llama import tiny_model

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces   three    four",
    "tabs\tand\nnew\r\nlines\n\n\n",
    "trailing space ",
    "\n",
    "a  12 b 2024 and 3.14159, 1e-9 or 0x7f",
    "don't you're we'll I'd DON'T",
    "Grüße aus Köln, ça va? naïve façade",
    "Привет, как дела?",
    "你好，世界！今天天气怎么样？",
    "こんにちは世界。カタカナ",
    "안녕하세요 세계",
    "مرحبا بالعالم",
    "हिन्दी में नमस्ते",
    "emoji 😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "combining e\u0301 and \u00e9, zero\u200bwidth, nbsp\u00a0here",
    "def f(x):\n    return x ** 2  # comment\n\n\tif x: pass",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }",
    '<html><body class="x">&amp;</body></html>',
    "https://example.com/a?b=c&d=%20#frag",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>more <|im_end|> <|not_special|>",
    "x" * 300,
    "ab " * 100,
    "\x00\x01\x7f\ufffd",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ½ ² Ⅷ ①",
]


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    alphabet = "ab1 \n\t.,'é漢😀\u0301<|>_-QZ"
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 40))) for _ in range(count)]


@cache
def smollm2_tokenizers() -> tuple[Tokenizer, Any]:
    path = locate(SMOLLM2_ALIAS, None)
    ours = Tokenizer.from_str(tokenizer_json(GGUFFile(path).fields).decode())
    return ours, AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def assert_same(ours: Tokenizer, theirs: Any, text: str) -> None:
    ids = ours.encode(text).ids
    assert ids == theirs(text).input_ids, repr(text)
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(
        ids, clean_up_tokenization_spaces=False
    )
    assert ours.decode(ids) == theirs.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )


def test_smollm2_gives_transformers_ids_and_texts() -> None:
    ours, theirs = smollm2_tokenizers()
    for text in TEXTS + random_texts(500):
        assert_same(ours, theirs, text)


def test_smollm2_has_transformers_vocabulary() -> None:
    ours, theirs = smollm2_tokenizers()
    assert ours.get_vocab() == theirs.get_vocab()


@pytest.mark.parametrize("split", ["smollm", "llama-bpe", "qwen2", "gpt-2"])
def test_each_pre_tokenizer_splits_as_transformers_does(split: str, tmp_path: Path) -> None:
    family = "qwen2" if split == "qwen2" else "llama"
    fields = {"tokenizer.ggml.pre": split}
    path = write_gguf(tiny_model(family), tmp_path / "m.gguf", fields=fields)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    ours = Tokenizer.from_str(tokenizer_json(GGUFFile(path).fields).decode())
    for text in TEXTS + random_texts(200):
        assert ours.encode(text).ids == theirs(text).input_ids, repr(text)


def test_a_user_defined_token_is_kept_whole_but_not_skipped() -> None:
    fields = tokenizer_fields(320)
    think = fields["tokenizer.ggml.tokens"].index("unused5")
    fields["tokenizer.ggml.token_type"][think] = 4
    tokenizer = Tokenizer.from_str(tokenizer_json(fields).decode())
    assert think in tokenizer.encode("a unused5 b").ids
    assert tokenizer.decode([think]) == "unused5"


def test_prompts_begin_with_bos_only_where_the_file_says_so() -> None:
    fields = tokenizer_fields(320)
    without = Tokenizer.from_str(tokenizer_json(fields).decode())
    fields["tokenizer.ggml.add_bos_token"] = True
    with_bos = Tokenizer.from_str(tokenizer_json(fields).decode())
    assert with_bos.encode("hello").ids == [1, *without.encode("hello").ids]
    assert with_bos.encode("hello", add_special_tokens=False).ids == without.encode("hello").ids


def test_prompts_end_with_eos_only_where_the_file_says_so() -> None:
    fields = tokenizer_fields(320) | {"tokenizer.ggml.add_eos_token": True}
    with_eos = Tokenizer.from_str(tokenizer_json(fields).decode())
    inner = with_eos.encode("hello", add_special_tokens=False).ids
    assert with_eos.encode("hello").ids == [*inner, 2]
    fields["tokenizer.ggml.add_bos_token"] = True
    with_both = Tokenizer.from_str(tokenizer_json(fields).decode())
    assert with_both.encode("hello").ids == [1, *inner, 2]


@pytest.mark.parametrize("none", [-1, 2**32 - 1])
def test_an_end_of_none_is_left_out(none: int) -> None:
    fields = tokenizer_fields(320) | {"tokenizer.ggml.add_bos_token": True}
    fields |= {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.bos_token_id": none}
    tokenizer = Tokenizer.from_str(tokenizer_json(fields).decode())
    inner = tokenizer.encode("hello", add_special_tokens=False).ids
    assert tokenizer.encode("hello").ids == [*inner, 2]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("model", "t5", "'t5'"),
        ("model", "bert", "'bert'"),
        ("pre", "tekken-9", "'tekken-9'"),
        ("merges", None, "merges"),
        ("tokens", None, "tokens"),
    ],
)
def test_other_tokenizers_are_refused_by_name(field: str, value: str | None, reason: str) -> None:
    fields = tokenizer_fields(320)
    fields.pop(f"tokenizer.ggml.{field}")
    if value is not None:
        fields[f"tokenizer.ggml.{field}"] = value
    with pytest.raises(ModelError, match=reason):
        tokenizer_json(fields)
