"""Answers that list stored events: each may be megabytes, and stays in memory until its client has read it.

So a principal has at most AT_ONCE of them, from the start of the request until its answer is read; a client that reads
nothing is closed after `stall_seconds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hitbox.broker.fair_threads import held
from hitbox.protocol.errors import Overloaded

AT_ONCE = 10
PIECE_BYTES = 64 * 1024
"""Sent at once: before the next piece, the client must have read most of the one before."""


class Listings:
    def __init__(self) -> None:
        self._unread: Counter[str] = Counter()

    def answer(self, principal: str, make: Callable[[], Awaitable[Response]]) -> Listing:
        return Listing(self._unread, principal, make)


class Listing:
    """One of them, an ASGI application."""

    def __init__(self, unread: Counter[str], principal: str, make: Callable[[], Awaitable[Response]]):
        self._unread, self._principal, self._make = unread, principal, make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._unread[self._principal] >= AT_ONCE:
            raise Overloaded(f"{self._principal!r} has {AT_ONCE} lists of events that are not read yet", 1)
        with held(self._unread, self._principal):
            await _send(await self._make(), send)


async def _send(answer: Response, send: Send) -> None:
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    body = memoryview(answer.body)
    for at in range(0, len(body), PIECE_BYTES):
        piece = bytes(body[at : at + PIECE_BYTES])
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
