"""Small tokenizers of other families than SmolLM2's."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, processors

WORDS = (
    "\u2581",
    "\u2581\u2581",
    "\u2581he",
    "llo",
    "\u2581wor",
    "ld",
    ".",
    "a",
    "\u00e9",
    "\u4e2d",
)
NUM_SPECIAL = 3


def byte_fallback_tokenizer(*, adds_bos: bool = False) -> bytes:
    """Llama 2's kind: words with U+2581 for a space, and a token per byte for all else.

    Ids: <unk>, <s>, </s>, the 256 bytes, the words. `adds_bos`: encoding a text puts <s> first.
    """
    entries = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS)
    vocabulary = {entry: i for i, entry in enumerate(entries)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer.to_str().encode()


def byte_id(byte: int) -> int:
    return NUM_SPECIAL + byte


def word_id(word: str) -> int:
    return NUM_SPECIAL + 256 + WORDS.index(word)


def metaspace_tokenizer() -> bytes:
    """A unigram-like vocabulary decoded by Metaspace, which drops the first token's space."""
    entries = ("<unk>", "<s>", "</s>", *WORDS)
    vocabulary = {entry: i for i, entry in enumerate(entries)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer.to_str().encode()
