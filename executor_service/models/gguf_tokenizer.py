"""tokenizer.json from the fields of a GGUF file, with the `tokenizers` library alone.

Splits and specials follow transformers' own conversion, so that a prompt becomes the same ids.
Byte-level BPE ("gpt2") is made here and SentencePiece's BPE ("llama") in `gguf_sentencepiece`;
anything else is refused by name.
"""

from __future__ import annotations

from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    pre_tokenizers,
    processors,
)
from tokenizers import models as tokenizer_models

from common.errors import ModelError
from executor_service.models.gguf_added_tokens import add_special_tokens
from executor_service.models.gguf_fields import TokenType, end_id, field, optional_field
from executor_service.models.gguf_sentencepiece import sentencepiece_tokenizer

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {
    "gpt-2": None,
    "default": None,
    "smollm": None,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
}
"""The field `pre` -> regular expression of the split; None: that of GPT-2."""


def tokenizer_json(fields: dict[str, Any]) -> bytes:
    """Raises ModelError naming the kind of tokenizer that is not supported."""
    kind = optional_field(fields, "model")
    if kind == "gpt2":
        tokenizer = _byte_level_tokenizer(fields)
    elif kind == "llama":
        tokenizer = sentencepiece_tokenizer(fields)
    else:
        raise ModelError(
            f"tokenizer kind {kind!r} of the GGUF file is not supported; gpt2 and llama are"
        )
    _add_ends(tokenizer, fields)
    return tokenizer.to_str().encode()


def _byte_level_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    split = optional_field(fields, "pre", "default")
    if split not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise ModelError(f"pre-tokenizer {split!r} is not supported; supported are {known}")
    tokenizer = _bpe(field(fields, "tokens"), field(fields, "merges"))
    _set_split(tokenizer, _SPLITS[split])
    add_special_tokens(tokenizer, _matched_tokens(fields))
    return tokenizer


def _bpe(tokens: list[str], merges: list[str]) -> Tokenizer:
    try:
        pairs = [(first, second) for first, _, second in (m.partition(" ") for m in merges)]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        return Tokenizer(tokenizer_models.BPE(vocab=vocabulary, merges=pairs))
    except Exception as error:  # tokenizers raises no narrower one
        raise ModelError(
            f"the GGUF file's tokens and merges make no tokenizer: {error}; convert the model again"
        ) from error


def _set_split(tokenizer: Tokenizer, split: str | None) -> None:
    if split is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()


def _matched_tokens(fields: dict[str, Any]) -> list[tuple[str, int]]:
    """Tokens that are matched before a text is split, with their types.

    Each real token is spelled in the byte alphabet; a control token that is not is a mislabelled
    entry, and adding it would grow the vocabulary.
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    typed = zip(field(fields, "tokens"), optional_field(fields, "token_type", []), strict=False)
    return [
        (token, kind)
        for token, kind in typed
        if kind == TokenType.USER_DEFINED or (kind == TokenType.CONTROL and set(token) <= alphabet)
    ]


def _add_ends(tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    """Prompts begin with BOS and end with EOS where the file says so.

    A SentencePiece file that says nothing means a BOS. An end that is no token is left out.
    """
    is_sentencepiece = optional_field(fields, "model") == "llama"
    single = ["$A"]
    special_tokens = []
    for name, default in (("bos", is_sentencepiece), ("eos", False)):
        is_added = optional_field(fields, f"add_{name}_token", default)
        if is_added and (token_id := end_id(fields, name)) is not None:
            token = field(fields, "tokens")[token_id]
            special_tokens.append((token, token_id))
            single = [token, *single] if name == "bos" else [*single, token]
    if special_tokens:
        pair = [*single, *(piece.replace("$A", "$B") for piece in single)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=special_tokens
        )
