"""Responses that stop working when their client leaves, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Work = Callable[[Send], Awaitable[None]]


class WatchedResponse(Response):
    """Runs `work`, which sends the answer itself, and cancels it once the client is gone.

    The request's body must have been read. An error raised before anything was sent becomes the
    answer, as in any route.
    """

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        working = asyncio.ensure_future(self._work(send))
        watching = asyncio.create_task(_client_gone(receive))
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Only a server that is being stopped does this, and it logs what we raise.
            working.cancel()
        finally:
            watching.cancel()
            if not working.done():
                working.cancel()
            # Both have to be over before the server forgets the connection.
            await asyncio.gather(working, watching, return_exceptions=True)
        if not working.cancelled():
            working.result()


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
