"""What logprobs call a token: its text or, where a client asks for it, its id.

A sampled token's text is what it added to the answer, so that tokens joined are the text; inside
a character that is nothing. An alternative has no place in the text: it is shown as its own text
or, if that is no valid UTF-8, as `bytes:\\xe2\\x82`.
"""

from __future__ import annotations

from typing import Protocol

from scheduler_service.api.tokenizer import Tokenizer


class TokenNames(Protocol):
    def sampled(self, token_id: int, text: str) -> str:
        """Of a token that added `text`."""

    def alternative(self, token_id: int) -> str: ...


class TextNames:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def sampled(self, token_id: int, text: str) -> str:
        return text

    def alternative(self, token_id: int) -> str:
        return token_text(token_id, self._tokenizer)


class IdNames:
    """vLLM's `token_id:5`: unlike texts, no two tokens share one."""

    def sampled(self, token_id: int, text: str) -> str:
        return f"token_id:{token_id}"

    def alternative(self, token_id: int) -> str:
        return f"token_id:{token_id}"


def token_text(token_id: int, tokenizer: Tokenizer) -> str:
    """Of the token by itself."""
    content = tokenizer.token_bytes(token_id)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
