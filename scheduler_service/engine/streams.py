"""One stream of updates per request, on the worker's side.

The connection pushes whenever the loop has something; one consumer reads. Everything pushed since
the last read is merged into one update, so a slow client costs memory for its own tokens alone,
which its max_tokens bounds, and nobody ever waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from common.plan import TokenLogprobs
from scheduler_service.engine.messages import Admitted, Finished, Refused


@dataclass(slots=True)
class RequestUpdate:
    """All that happened to one request since the last read.

    To be applied in the order admitted, prompt_logprobs, tokens, finished. `refused` and `lost`
    are the last word: no update follows them.
    """

    admitted: Admitted | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """By choice, in order."""
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By choice, one entry per entry of `tokens`; only if asked for."""
    prompt_logprobs: list[tuple[int, list[TokenLogprobs]]] = field(default_factory=list)
    """(first position, entries), in order."""
    finished: list[Finished] = field(default_factory=list)
    refused: Refused | None = None
    lost: str | None = None
    """Why the step loop is gone, if it is."""


class RequestStream:
    """Single producer (the connection), single consumer."""

    def __init__(self) -> None:
        self._pending: RequestUpdate | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> RequestUpdate:
        """Everything since the last read; waits while that is nothing."""
        while self._pending is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        update, self._pending = self._pending, None
        return update

    def push_admitted(self, admitted: Admitted) -> None:
        self._open().admitted = admitted

    def push_token(self, choice: int, token: int, logprobs: TokenLogprobs | None) -> None:
        update = self._open()
        update.tokens.setdefault(choice, []).append(token)
        if logprobs is not None:
            update.logprobs.setdefault(choice, []).append(logprobs)

    def push_prompt_logprobs(self, first_position: int, entries: list[TokenLogprobs]) -> None:
        self._open().prompt_logprobs.append((first_position, entries))

    def push_finished(self, finished: Finished) -> None:
        self._open().finished.append(finished)

    def push_refused(self, refused: Refused) -> None:
        self._open().refused = refused

    def push_lost(self, reason: str) -> None:
        self._open().lost = reason

    def _open(self) -> RequestUpdate:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._pending is None:
            self._pending = RequestUpdate()
        return self._pending
