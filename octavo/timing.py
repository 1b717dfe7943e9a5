"""The three numbers of one answer, as the client sees them."""

from __future__ import annotations

import time
from collections.abc import Callable


class AnswerTiming:
    """Starts with the request; tell it of every arrival of tokens.

    TTFT: from the request to the first token. TPOT: from the first arrival to the last, per token
    that came after the first arrival. Tokens/s: all tokens over the whole time, TTFT included.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self._first = self._last = self._start
        self._num_first = 0
        self.num_tokens = 0

    def arrived(self, num_tokens: int) -> None:
        if num_tokens == 0:
            return
        self._last = self._clock()
        if self.num_tokens == 0:
            self._first = self._last
            self._num_first = num_tokens
        self.num_tokens += num_tokens

    @property
    def ttft_s(self) -> float | None:
        """None before the first token."""
        return self._first - self._start if self.num_tokens else None

    @property
    def tpot_s(self) -> float | None:
        """None while all tokens came at once."""
        later = self.num_tokens - self._num_first
        return (self._last - self._first) / later if later else None

    @property
    def tokens_per_s(self) -> float | None:
        elapsed = self._last - self._start
        return self.num_tokens / elapsed if elapsed > 0 else None

    def summary(self) -> str:
        """`TTFT 120 ms | TPOT 31.0 ms | 29.1 tokens/s | 64 tokens`; a dash for what is unknown."""
        ttft = "-" if self.ttft_s is None else f"{self.ttft_s * 1e3:.0f} ms"
        tpot = "-" if self.tpot_s is None else f"{self.tpot_s * 1e3:.1f} ms"
        rate = "-" if self.tokens_per_s is None else f"{self.tokens_per_s:.1f}"
        count = "1 token" if self.num_tokens == 1 else f"{self.num_tokens} tokens"
        return f"TTFT {ttft} | TPOT {tpot} | {rate} tokens/s | {count}"
