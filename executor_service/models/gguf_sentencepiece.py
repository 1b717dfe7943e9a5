"""A GGUF file's SentencePiece vocabulary ("llama") as a BPE tokenizer of the `tokenizers` library.

SentencePiece joins, again and again, the two neighbours whose joined piece has the best score. So
every way to cut a piece in two pieces is a merge, ranked by the score of the whole. Characters that
no piece has become their bytes. As in llama.cpp, each text between special tokens gets a space in
front where the file says so.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers import models as tokenizer_models

from common.errors import ModelError
from executor_service.models.gguf_added_tokens import add_special_tokens
from executor_service.models.gguf_fields import (
    TokenType,
    field,
    named_ids,
    optional_field,
    sentencepiece_unknown_id,
)
from executor_service.models.gguf_spellings import distinct_spellings, unmarking

_JOINED = (TokenType.NORMAL, TokenType.USER_DEFINED)
_SPACE = "\u2581"


def sentencepiece_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """Without its BOS and EOS. Raises ModelError for missing fields."""
    tokens: list[str] = field(fields, "tokens")
    scores: list[float] = field(fields, "scores")
    types: list[int] = optional_field(fields, "token_type", [TokenType.NORMAL] * len(tokens))
    if not len(tokens) == len(scores) == len(types):
        raise ModelError("the GGUF file's tokens, scores and token types differ in number")
    pieces = {
        token: score
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind in _JOINED
    }
    unknown = sentencepiece_unknown_id(fields)
    spellings = distinct_spellings(tokens, [*named_ids(fields), unknown])
    tokenizer = Tokenizer(
        tokenizer_models.BPE(
            vocab={spelling: i for i, spelling in enumerate(spellings)},
            merges=merges_of(pieces),
            unk_token=spellings[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    _set_spaces(tokenizer, in_front=optional_field(fields, "add_space_prefix", True))
    if spellings != tokens:
        tokenizer.decoder = decoders.Sequence([unmarking(), tokenizer.decoder])
    add_special_tokens(tokenizer, zip(spellings, types, strict=True))
    return tokenizer


def merges_of(pieces: dict[str, float]) -> list[tuple[str, str]]:
    """Every cut of a piece in two pieces; the best piece's come first.

    Each merge has a rank of its own here, where SentencePiece takes equal scores from left to
    right. In a trained vocabulary, scores differ and the cuts of one piece never compete.
    """
    merges = []
    for piece in sorted(pieces, key=pieces.__getitem__, reverse=True):
        for i in range(1, len(piece)):
            first = piece[:i]
            if first in pieces and (second := piece[i:]) in pieces:
                merges.append((first, second))
    return merges


def _set_spaces(tokenizer: Tokenizer, *, in_front: bool) -> None:
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if in_front:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
