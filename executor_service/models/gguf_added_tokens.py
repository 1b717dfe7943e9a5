"""Tokens of a GGUF vocabulary that are matched in a text before it is split."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer

from executor_service.models.gguf_fields import TokenType

_SPECIAL = (TokenType.UNKNOWN, TokenType.CONTROL)


def add_special_tokens(tokenizer: Tokenizer, tokens: Iterable[tuple[str, int]]) -> None:
    """Of tokens with their types.

    Unknown and control ones are special; user-defined ones are only matched whole.
    """
    special, user_defined = [], []
    for token, kind in tokens:
        if kind in _SPECIAL:
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == TokenType.USER_DEFINED:
            user_defined.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(user_defined)
