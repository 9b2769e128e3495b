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
from hitbox.broker.broker import Broker, are_few
from hitbox.broker.errors import BadRequest
from hitbox.broker.http import request_bodies
from hitbox.broker.http.auth import PROTOCOL, RateLimiter
from hitbox.broker.http.connections import WebSocketProtocol
from hitbox.broker.http.error_responses import describe, status_of
from hitbox.broker.http.steps import until_one_ends
from hitbox.broker.http.websocket import Publish, check_count, check_publish, receive, send_texts
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
        self._line: WebSocketProtocol = socket.scope["extensions"]["hitbox"]
        self._close_with = (1000, "")
        self._ended = asyncio.Event()
        self._problem: Exception | None = None  # of what was done without a task
        self._waits = False  # for the next message: then a small one can be handled as soon as it comes
        self._unanswered: deque[tuple[Publish | Frame, asyncio.Future[int] | HitboxError]] = deque()
        self._sending = False  # the client does not read, and `_answer` waits for it
        self._more, self._fewer = asyncio.Event(), asyncio.Event()

    def close(self, code: int, reason: str) -> None:
        """Ask for the connection to be closed, without waiting; `run` closes it."""
        self._close_with = code, reason
        self._ended.set()

    async def run(self) -> None:
        most = (MESSAGE_BYTES.encode(), str(self.broker.settings.max_body_bytes).encode())
        await self.socket.accept(PROTOCOL if PROTOCOL in self.socket.scope["subprotocols"] else None, [most])
        async with until_one_ends(self._receive(), self._answer(), self._closed()) as problems:
            self._line.take = None
            for problem in problems:
                if isinstance(problem, HitboxError):
                    self.close(1008, str(problem).partition("\n")[0])
                elif not isinstance(problem, (WebSocketDisconnect, RuntimeError)):
                    log.error("a connection of publisher %r failed", self.caller.name, exc_info=problem)
                    self.close(1011, "unexpected error; see the broker's log")
            code, reason = self._close_with
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it may be closed already
                await self.socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))

    # ---- in

    async def _receive(self) -> None:
        self._line.take = self._take
        while True:
            self._waits = True
            data = await receive(self.socket)
            self._waits = False
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
            self._accepted(message, found)
            while len(self._unanswered) >= MOST_UNANSWERED:
                self._fewer.clear()
                await self._fewer.wait()

    def _take(self, data: bytes) -> bool:
        """Handle a message with a few events without a turn of the event loop; returns whether it was one."""
        if not self._waits or self._ended.is_set() or len(data) > LARGE or len(self._unanswered) >= MOST_UNANSWERED:
            return False
        found: asyncio.Future[int] | HitboxError
        try:
            message = _decode(data)
        except BadRequest:
            return False  # it is queued, and `_receive` says what is wrong
        if not message.items or not are_few(message.items):
            return False
        try:
            check_count(self.broker, self.rate_limiter, self.caller, len(message.items))
            self.caller.check_publish_now(message.items)
            found = self.broker.accept_now(message.items, self.caller.name)
        except HitboxError as problem:
            found = problem
        except Exception as problem:
            self._problem = problem
            self._ended.set()
            return True
        self._accepted(message, found)
        return True

    async def _closed(self) -> None:
        await self._ended.wait()
        if self._problem is not None:
            raise self._problem

    # ---- out

    def _accepted(self, message: Publish | Frame, found: asyncio.Future[int] | HitboxError) -> None:
        self._unanswered.append((message, found))
        if isinstance(found, HitboxError):
            self._more.set()
        else:
            found.add_done_callback(self._answer_now)

    def _answer_now(self, _: asyncio.Future[int]) -> None:
        """Send what can be answered, without a turn of the event loop."""
        answers: list[bytes] = []
        try:
            if can_send := not self._sending and self._line.can_send():
                answers = self._answers()
        except (Exception, asyncio.CancelledError):
            return  # `_answer` raises it
        if answers:
            self._line.send_now(answers)
        if not can_send:
            self._more.set()

    async def _answer(self) -> None:
        """The same where it has to wait for the client, or was not possible."""
        while True:
            await self._more.wait()
            self._more.clear()
            self._sending = True
            while answers := self._answers():
                await send_texts(self.socket, answers)
            self._sending = False

    def _answers(self) -> list[bytes]:
        """The answers to the oldest requests, in order, as far as they are known."""
        answers: list[bytes] = []
        while self._unanswered:
            message, found = self._unanswered[0]
            if not isinstance(found, HitboxError) and not found.done():
                break
            try:
                answers.append(_answer(message, found))
            except (Exception, asyncio.CancelledError):
                self._more.set()
                if answers:
                    break  # these first
                raise
            self._unanswered.popleft()
        self._fewer.set()
        return answers


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
