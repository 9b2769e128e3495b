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
import logging
from collections import deque

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from hitbox.broker.access.rights import PUBLISH, Caller
from hitbox.broker.broker import Broker, are_few
from hitbox.broker.events.json_text import LARGE, decode
from hitbox.broker.http.auth import PROTOCOL, RateLimiter
from hitbox.broker.http.connections import WebSocketProtocol
from hitbox.broker.http.error_responses import describe, status_of
from hitbox.broker.http.steps import Ending, until_one_ends
from hitbox.broker.http.websocket import (
    LargePublish,
    Publish,
    check_count,
    close_socket,
    decode_message,
    receive,
    send_texts,
)
from hitbox.broker.logs import without_message
from hitbox.broker.settings import Settings
from hitbox.errors import HitboxError
from hitbox.index.match_budget import UsedUp
from hitbox.protocol.errors import BadRequest, StoreFailed, TooLarge

MOST_UNANSWERED = 1_000
MESSAGE_BYTES = "hitbox-message-bytes"
log = logging.getLogger("hitbox.broker")


class Frame(msgspec.Struct, tag_field="type", tag="publish"):
    """A message without its items, which may be invalid."""

    request: int = 0


class AcceptedRequest(msgspec.Struct, eq=False):
    """What its answer needs. Its events are not kept until then: they may be large, and the client slow."""

    request: int
    count: int
    is_delayed: bool
    stored: asyncio.Future[int]


class PublishSession:
    """One connection of a publisher."""

    need = PUBLISH

    def __init__(self, socket: WebSocket, broker: Broker, rate_limiter: RateLimiter, caller: Caller):
        self.socket, self.broker, self.rate_limiter, self.caller = socket, broker, rate_limiter, caller
        self._line: WebSocketProtocol = socket.scope["extensions"]["hitbox"]
        self._close_with = (1000, "")
        self._ended = asyncio.Event()
        self._ending = Ending(self._ended)
        self._unanswered: deque[AcceptedRequest | bytes] = deque()  # bytes: the answer, an error
        self._sending = False  # the client does not read, and `_answer` waits for it
        self._more, self._fewer = asyncio.Event(), asyncio.Event()

    def close(self, code: int, reason: str) -> None:
        """Ask for the connection to be closed, without waiting; `run` closes it."""
        self._close_with = code, reason
        self._ended.set()

    def discard_unsent(self) -> None:
        """Answers to what was published before: its publisher may have them."""

    async def run(self) -> None:
        most = (MESSAGE_BYTES.encode(), str(self.broker.settings.max_body_bytes).encode())
        await self.socket.accept(PROTOCOL if PROTOCOL in self.socket.scope["subprotocols"] else None, [most])
        async with until_one_ends(self._receive(), self._answer(), self._ending.wait()) as problems:
            self._line.take = None
            for problem in problems:
                if isinstance(problem, HitboxError):
                    self.broker.statistics.count_refusal(status_of(problem))
                    self.close(1008, str(problem).partition("\n")[0])
                elif not isinstance(problem, (WebSocketDisconnect, RuntimeError)):
                    text = "a connection of publisher %r failed"
                    log.error(text, self.caller.name, exc_info=without_message(problem))
                    self.close(1011, "unexpected error; see the broker's log")
            await close_socket(self.socket, *self._close_with)

    # ---- in

    async def _receive(self) -> None:
        self._line.take = self._take
        while True:
            await self._handle(await receive(self.socket))
            while len(self._unanswered) >= MOST_UNANSWERED:
                self._fewer.clear()
                await self._fewer.wait()

    async def _handle(self, data: bytes) -> None:
        """Accept or refuse one message. Nothing of it stays in memory while the next one is awaited."""
        settings = self.broker.settings
        try:
            is_large = len(data) > LARGE
            message = await asyncio.to_thread(_decode, data, settings) if is_large else _decode(data, settings)
        except (BadRequest, TooLarge) as problem:
            self.broker.statistics.counts["refused"] += 1  # nobody knows how many events it has
            self._refused(_frame(data, problem).request, problem)
            return
        try:
            check_count(self.broker, self.rate_limiter, self.caller, len(message.items))
            self._accepted(message, await self.broker.accept(message.items, self.caller, len(data)))
        except HitboxError as problem:
            self._refused(message.request, problem)

    def _take(self, data: bytes) -> bool:
        """Handle a message with a few events without a turn of the event loop; returns whether it was one."""
        if self._ended.is_set() or len(data) > LARGE or len(self._unanswered) >= MOST_UNANSWERED:
            return False
        try:
            message = _decode(data, self.broker.settings)
        except BadRequest:
            return False  # it is queued, and `_receive` says what is wrong
        if not message.items or not are_few(message.items):
            return False
        try:
            check_count(self.broker, self.rate_limiter, self.caller, len(message.items))
            self._accepted(message, self.broker.accept_now(message.items, self.caller))
        except HitboxError as problem:
            self._refused(message.request, problem)
        except UsedUp:  # it is queued, and `accept` finds out in a thread
            self.rate_limiter.give_back(self.caller.name, len(message.items))
            return False
        except Exception as problem:
            self._ending.fail(problem)
        return True

    def _accepted(self, message: Publish, stored: asyncio.Future[int]) -> None:
        is_delayed = bool(message.items) and message.items[0].delay_seconds is not None
        self._unanswered.append(AcceptedRequest(message.request, len(message.items), is_delayed, stored))
        stored.add_done_callback(self._answer_now)

    def _refused(self, request: int, problem: HitboxError) -> None:
        self._unanswered.append(self._error(request, problem))
        self._more.set()

    # ---- out

    def _answer_now(self, _: asyncio.Future[int]) -> None:
        """Send what can be answered, without a turn of the event loop."""
        if self._sending or not self._line.can_send():
            self._more.set()
        elif answers := self._answers():
            self._line.send_now(answers)

    async def _answer(self) -> None:
        """Send answers for which the client has to be waited for."""
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
            oldest = self._unanswered[0]
            if isinstance(oldest, AcceptedRequest):
                if not oldest.stored.done():
                    break
                try:
                    oldest = self._answer_to(oldest)
                except Exception as problem:
                    self._ending.fail(problem)
                    break
            answers.append(oldest)
            self._unanswered.popleft()
        self._fewer.set()
        return answers

    def _answer_to(self, one: AcceptedRequest) -> bytes:
        problem = StoreFailed("the broker was stopped") if one.stored.cancelled() else one.stored.exception()
        if problem is None:
            number = b"delayed" if one.is_delayed else b"first"
            return b'{"type":"done","request":%d,"%b":%d,"count":%d}' % (
                one.request, number, one.stored.result(), one.count,
            )  # fmt: skip
        if not isinstance(problem, HitboxError):
            raise problem
        return self._error(one.request, problem)

    def _error(self, request: int, problem: HitboxError) -> bytes:
        status = status_of(problem)
        self.broker.statistics.count_refusal(status)
        return msgspec.json.encode({"type": "error", "request": request, "status": status, **describe(problem)})


def _decode(data: bytes, settings: Settings) -> Publish:
    found: Publish = decode_message(data, Publish, LargePublish, settings)
    return found


def _frame(data: bytes, problem: HitboxError) -> Frame:
    """Which request has invalid items. Raises the problem if that cannot be read: then the connection ends."""
    try:
        return decode(data, Frame)
    except BadRequest:
        raise problem from None
