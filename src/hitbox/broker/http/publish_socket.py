"""Publishing over a WebSocket, /v1/publish: many publishes in flight, answered in their order.

    client                                               broker
    {"type": "publish", "request": 1, "items": [...]}
    {"type": "publish", "request": 2, "items": [...]}    {"type": "done", "request": 1, "first": 7, "count": 1}
                                                         {"type": "error", "request": 2, "status": 429, "error": {...}}

There is no hello. The answer to the handshake has a header that says how large a message may be; a larger one ends the
connection. Events are numbered in the order in which they arrive, and "done" comes when they are durable. What
arrives while the store writes is stored together afterwards. An error concerns its request only; the connection stays
open. With MOST_UNANSWERED requests in flight nothing more is read until some are answered. If the connection ends, what
was read is still stored; a client without an answer does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from hitbox.broker.access.rights import PUBLISH, Caller
from hitbox.broker.broker import Broker
from hitbox.broker.errors import BadRequest
from hitbox.broker.http import request_bodies
from hitbox.broker.http.auth import PROTOCOL, RateLimiter
from hitbox.broker.http.error_responses import describe, status_of
from hitbox.broker.http.steps import until_one_ends
from hitbox.broker.http.websocket import Publish, check_publish, receive, send_texts
from hitbox.broker.published_event import answered
from hitbox.errors import HitboxError

MOST_UNANSWERED = 1_000
MESSAGE_BYTES = "hitbox-message-bytes"
LARGE = 64 * 1024
"""A message of more bytes than this is decoded in a thread, so that it does not delay the event loop."""
log = logging.getLogger("hitbox.broker")


class Frame(msgspec.Struct, tag_field="type", tag="publish"):
    """A message without its items, which may be invalid."""

    request: int = 0


class PublishSession:
    """One connection of a publisher."""

    need = PUBLISH

    def __init__(self, socket: WebSocket, broker: Broker, rate_limiter: RateLimiter, caller: Caller):
        self.socket, self.broker, self.rate_limiter, self.caller = socket, broker, rate_limiter, caller
        self._close_with = (1000, "")
        self._ended = asyncio.Event()
        self._unanswered: deque[tuple[Publish | Frame, asyncio.Future[int] | HitboxError]] = deque()
        self._more, self._fewer = asyncio.Event(), asyncio.Event()

    def close(self, code: int, reason: str) -> None:
        """Ask for the connection to be closed, without waiting; `run` closes it."""
        self._close_with = code, reason
        self._ended.set()

    async def run(self) -> None:
        most = (MESSAGE_BYTES.encode(), str(self.broker.settings.max_body_bytes).encode())
        await self.socket.accept(PROTOCOL if PROTOCOL in self.socket.scope["subprotocols"] else None, [most])
        async with until_one_ends(self._receive(), self._answer(), self._ended.wait()) as problems:
            for problem in problems:
                if isinstance(problem, HitboxError):
                    self.close(1008, str(problem).partition("\n")[0])
                elif not isinstance(problem, (WebSocketDisconnect, RuntimeError)):
                    log.error("a connection of publisher %r failed", self.caller.name, exc_info=problem)
                    self.close(1011, "unexpected error; see the broker's log")
            code, reason = self._close_with
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it may be closed already
                await self.socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))

    async def _receive(self) -> None:
        while True:
            data = await receive(self.socket)
            large = len(data) > LARGE
            message: Publish | Frame
            found: asyncio.Future[int] | HitboxError
            try:
                message = await asyncio.to_thread(_decode, data) if large else _decode(data)
            except BadRequest as problem:
                message, found = _frame(data, problem), problem
            else:
                try:
                    await check_publish(self.broker, self.rate_limiter, self.caller, message.items)
                    found = await self.broker.accept(message.items, self.caller.name)
                except HitboxError as problem:
                    found = problem
            self._unanswered.append((message, found))
            self._more.set()
            while len(self._unanswered) >= MOST_UNANSWERED:
                self._fewer.clear()
                await self._fewer.wait()

    async def _answer(self) -> None:
        """Answer in order: wait for the oldest request, then send the answers of all that are ready."""
        while True:
            while not self._unanswered:
                self._more.clear()
                await self._more.wait()
            oldest = self._unanswered[0][1]
            if not isinstance(oldest, HitboxError) and not oldest.done():
                await asyncio.wait([oldest])
            answers = []
            while self._unanswered:
                message, found = self._unanswered[0]
                if not isinstance(found, HitboxError) and not found.done():
                    break
                self._unanswered.popleft()
                answers.append(_answer(message, found))
            self._fewer.set()
            await send_texts(self.socket, answers)


def _decode(data: bytes | str) -> Publish:
    return request_bodies.decode(data, Publish)


def _frame(data: bytes | str, problem: BadRequest) -> Frame:
    """Which request has invalid items. Raises the problem if that cannot be read: then the connection ends."""
    try:
        return request_bodies.decode(data, Frame)
    except BadRequest:
        raise problem from None


def _answer(message: Publish | Frame, found: asyncio.Future[int] | HitboxError) -> bytes:
    problem = found if isinstance(found, HitboxError) else found.exception()
    if problem is None:
        assert not isinstance(found, HitboxError)
        assert isinstance(message, Publish)
        if message.items and message.items[0].delay_seconds is not None:
            done = {"type": "done", "request": message.request, **answered(message.items, found.result())}
            return msgspec.json.encode(done)
        return b'{"type":"done","request":%d,"first":%d,"count":%d}' % (
            message.request, found.result(), len(message.items),
        )  # fmt: skip
    if not isinstance(problem, HitboxError):
        raise problem
    error = {"type": "error", "request": message.request, "status": status_of(problem), **describe(problem)}
    return msgspec.json.encode(error)
