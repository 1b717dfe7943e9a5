"""Token ids to text, one token at a time.

The pieces of one detokenizer, joined, are what decoding all its tokens at once gives, leading
spaces and special tokens next to text included; after a prompt, what they add to the prompt's text.
Of bytes that prove invalid, what was given out before them stays. A character is given out by the
token that completes it, so no piece ever holds U+FFFD in place of a character still on its way.
Each token costs O(1), amortised.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from scheduler_service.api.token_bytes import fallback_byte
from scheduler_service.api.tokenizer import Decoding, Tokenizer

_MAX_WINDOW_TOKENS = 16
_MAX_BYTE_RUN = 32
"""Bytes of a byte-fallback run that wait for its end. One-shot decoding turns a whole run into
U+FFFD if any part of it is invalid, so nothing of it is certain before its end; but a text that
is spelt in bytes alone has to stream too. 32 bytes hold any emoji or some ten ideographs.

ASCII ends a run: a line's end, which such vocabularies have as a byte only, is given out at once,
and a stop string of it stops there."""


class Detokenizer(Protocol):
    """Of one choice."""

    def push(self, token_id: int) -> str:
        """The text that this token completes, often all of its own."""

    def flush(self) -> str:
        """What is still held; afterwards no token may follow."""


def new_detokenizer(
    tokenizer: Tokenizer, *, skip_special_tokens: bool, prompt: Sequence[int] = ()
) -> Detokenizer:
    """Of the text that goes on after that of `prompt`, which may begin with a space."""
    skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
    if tokenizer.decoding is Decoding.BYTE_LEVEL:
        return ByteLevelDetokenizer(tokenizer, skipped)
    return WindowDetokenizer(tokenizer, skipped, prompt)


def text_of(detokenizer: Detokenizer, token_ids: Iterable[int]) -> str:
    """The whole text of fresh `detokenizer`'s choice."""
    return "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])


class ByteLevelDetokenizer:
    """For vocabularies whose tokens are bytes: a streaming UTF-8 decoder does all.

    It holds at most the three bytes of an unfinished character, and an invalid byte shows itself
    with the next token at the latest.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For all other vocabularies: decodes a short window of tokens and gives out what is new.

        anchor  token token token
        |<-- given out --->|<new>|

    The window starts at a token that is really decoded (a skipped one would make the next token
    the first, which loses its leading space) and that is no byte (decoding never starts inside a
    run of them).
    """

    def __init__(
        self, tokenizer: Tokenizer, skipped: frozenset[int], prompt: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._window: list[int] = []
        self._num_given_chars = 0
        self._anchor = self._last_anchor(prompt)
        self._run = _ByteRun()
        if self._anchor is not None:
            self._restart_window()

    def push(self, token_id: int) -> str:
        entry = self._tokenizer.token(token_id)
        if entry is None or token_id in self._skipped:
            return ""
        byte = fallback_byte(entry)
        return self._push_text(token_id) if byte is None else self._push_byte(token_id, byte)

    def flush(self) -> str:
        return self._take()

    def _push_text(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._take()
        self._anchor = token_id
        self._run = _ByteRun()
        if len(self._window) > _MAX_WINDOW_TOKENS:
            self._restart_window()
        return text

    def _push_byte(self, token_id: int, byte: int) -> str:
        if self._run.is_broken:
            return "\ufffd"  # as the rest of this run will be, whatever follows
        self._window.append(token_id)
        self._run.append(byte)
        if self._run.is_broken:
            return self._take()
        is_ascii = byte < 0x80
        if self._run.is_inside_character or (not is_ascii and self._run.length <= _MAX_BYTE_RUN):
            return ""
        text = self._take()
        self._run = _ByteRun()
        self._restart_window()
        return text

    def _last_anchor(self, prompt: Sequence[int]) -> int | None:
        """None if the prompt has no text."""
        has_bytes = False
        for token_id in reversed(prompt):
            entry = self._tokenizer.token(token_id)
            if entry is None or token_id in self._skipped:
                continue
            if fallback_byte(entry) is None:
                return token_id
            has_bytes = True
        return self._tokenizer.plain_id if has_bytes else None

    def _take(self) -> str:
        text = self._decode()
        new, self._num_given_chars = text[self._num_given_chars :], len(text)
        return new

    def _restart_window(self) -> None:
        if self._anchor is None:  # so far there were bytes only
            self._anchor = self._tokenizer.plain_id
        self._window = [] if self._anchor is None else [self._anchor]
        self._num_given_chars = len(self._decode())

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)


class _ByteRun:
    """Consecutive byte tokens as UTF-8."""

    def __init__(self) -> None:
        self.length = 0
        self.is_broken = False
        """No continuation makes it valid."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def append(self, byte: int) -> None:
        self.length += 1
        try:
            self._decoder.decode(bytes([byte]))
        except UnicodeDecodeError:
            self.is_broken = True

    @property
    def is_inside_character(self) -> bool:
        return bool(self._decoder.getstate()[0])
