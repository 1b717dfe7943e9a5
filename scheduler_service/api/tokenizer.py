"""Text to token ids and back, from the bytes of one tokenizer.json.

Rule 1: special tokens are added only on the caller's word. A rendered chat template already holds
its own, so adding them again would double the BOS. Rule 2: no long text is encoded on the event
loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import Any

import tokenizers

from common.errors import InvalidRequestError, ModelError
from common.marked_spelling import unmarked
from scheduler_service.api.token_bytes import byte_level_bytes, fallback_byte, plain_bytes

_SHORT_TEXT_CHARS = 2_000
"""Encodes in about a millisecond; handing it to a thread costs as much."""
_MAX_CACHED_TOKENS = 1 << 20


class Decoding(Enum):
    """How token ids become text."""

    BYTE_LEVEL = "byte level"
    """Each token is bytes of its own; text is their concatenation as UTF-8."""
    OTHER = "other"
    """Whatever tokenizer.json's decoder says: text of a token may depend on its neighbours."""


class Tokenizer:
    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
            decoder = json.loads(tokenizer_json).get("decoder")
        except ValueError as error:
            raise ModelError(f"tokenizer.json cannot be read: {error}") from error
        # Files saved after training may cut or pad; serving never does either in silence.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.decoding = _decoding_of(decoder)
        self.longest_token_chars = max(
            [1, *(len(unmarked(spelling)) for spelling in self._tokenizer.get_vocab())]
        )
        """So a text of n characters has at least n / this many tokens."""
        self._bytes: dict[int, bytes] = {}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out of text."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def plain_id(self) -> int | None:
        """Some token of text: no byte, not special, more than a space. None if there is none."""
        for token_id in range(self.vocab_size):
            entry = self.token(token_id)
            if entry is None or fallback_byte(entry) is not None or token_id in self.special_ids:
                continue
            if plain_bytes(entry).strip():
                return token_id
        return None

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return (await self.encode_batch([text], add_special_tokens=add_special_tokens))[0]

    async def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> list[list[int]]:
        """Token ids of each text; long ones are encoded on a thread, which releases the GIL."""
        if sum(map(len, texts)) <= _SHORT_TEXT_CHARS:
            return self._encode(texts, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self._encode, texts, add_special_tokens=add_special_tokens)

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        try:
            encodings = self._tokenizer.encode_batch_fast(
                list(texts), add_special_tokens=add_special_tokens
            )
        except (TypeError, UnicodeEncodeError) as error:  # a lone surrogate
            raise InvalidRequestError("the text is not valid Unicode", field="prompt") from error
        return [encoding.ids for encoding in encodings]

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Like `decode`; many ids are decoded on a thread."""
        if len(token_ids) <= _SHORT_TEXT_CHARS:
            return self.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return await asyncio.to_thread(
            self.decode, token_ids, skip_special_tokens=skip_special_tokens
        )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int) -> str | None:
        """The vocabulary's entry; None for an id it does not have."""
        entry: str | None = self._tokenizer.id_to_token(token_id)
        return None if entry is None else unmarked(entry)

    def token_id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token_bytes(self, token_id: int) -> bytes:
        """What the token alone stands for; empty for an id outside the vocabulary."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._read_bytes(token_id)
            if len(self._bytes) < _MAX_CACHED_TOKENS:
                self._bytes[token_id] = found
        return found

    def _read_bytes(self, token_id: int) -> bytes:
        entry = self.token(token_id)
        if entry is None:
            return b""
        return (
            byte_level_bytes(entry) if self.decoding is Decoding.BYTE_LEVEL else plain_bytes(entry)
        )


def _decoding_of(decoder: Any) -> Decoding:
    """Of a tokenizer.json's `decoder` field."""
    if isinstance(decoder, dict) and decoder.get("type") == "Sequence":
        steps = decoder.get("decoders") or [None]
        decoder = steps[0] if len(steps) == 1 else None
    if isinstance(decoder, dict) and decoder.get("type") == "ByteLevel":
        return Decoding.BYTE_LEVEL
    return Decoding.OTHER
