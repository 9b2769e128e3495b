"""Deliveries as Server-Sent Events, for browsers: GET /v1/subscribers/{subscriber}/deliveries.

    : hitbox                                            a comment: nothing to do; one comes every 15 seconds
    retry: 2000

    id: 7                                               the number of the event
    data: {"seq":7,"level":4, ... ,"event":{...}}       as on a WebSocket

    event: closed                                       the last one, if the broker ends the stream
    data: {"code":4409,"reason":"..."}

An event stream has no way back, so `ack` says what counts as an acknowledgement:

    sent      a delivery is acknowledged when the stream still stands CONFIRM_SECONDS after it was written. If it breaks
              before that, the delivery is sent again. A client that connects again with Last-Event-ID, as browsers do,
              has received everything up to that event, and gets what follows
    client    the client sends POST .../ack, .../nack and .../extend; at most `window` deliveries are unacknowledged.
              Last-Event-ID has no meaning then: what is not acknowledged comes again
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Annotated, Literal

import msgspec
from starlette.types import Receive, Scope, Send

from hitbox.broker.access.rights import Caller
from hitbox.broker.broker import Broker
from hitbox.broker.clock import time
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.delivery.receiver import Receiver
from hitbox.broker.http.connections import HttpProtocol
from hitbox.broker.http.error_responses import close_code, status_of
from hitbox.broker.http.steps import until_one_ends
from hitbox.broker.http.websocket import MOST, Window
from hitbox.broker.logs import without_message
from hitbox.errors import HitboxError
from hitbox.protocol.errors import BadRequest

HEARTBEAT_SECONDS = 15.0
CONFIRM_SECONDS = 2.0
HELLO, HEARTBEAT = b": hitbox\nretry: 2000\n\n", b":\n\n"
EVENT_ID = re.compile(r"(?P<incarnation>[0-9a-f]{16})-(?P<seq>[0-9]{1,16})")
Write = Callable[[bytes], Awaitable[None]]
log = logging.getLogger("hitbox.broker")


class StreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ack: Annotated[Literal["sent", "client"], msgspec.Meta(description="what counts as an acknowledgement")] = "sent"
    window: Window = 256


def event_number(header: str, incarnation: str) -> int:
    """The number in Last-Event-ID; 0 if there is none, or if it is that of another incarnation of the store."""
    text = header.strip()
    if not text:
        return 0
    if (found := EVENT_ID.fullmatch(text)) is None:
        raise BadRequest(f"Last-Event-ID is the id of an event of this stream, not {text!r:.40}")
    return int(found["seq"]) if found["incarnation"] == incarnation else 0


class EventStream(Receiver):
    """One stream of a subscriber's deliveries: the answer to a GET, which does not end by itself."""

    def __init__(
        self,
        broker: Broker,
        caller: Caller,
        name: str,
        query: StreamQuery,
        last: int,
        headers: dict[str, str],
        admit: Callable[[Receiver], AbstractContextManager[None]],
    ):
        super().__init__(broker.tracker, caller)
        self.broker, self.name, self.query, self.last, self.admit = broker, name, query, last, admit
        self._headers = {**headers, "content-type": "text/event-stream", "x-accel-buffering": "no"}
        self._written: deque[tuple[float, int]] = deque()
        self._is_stuck = False  # the client has not read enough to take the next delivery
        self._timer: asyncio.TimerHandle | None = None
        self._line: HttpProtocol

    def discard_unsent(self) -> None:
        self._line.discard_unsent()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = self.caller.receiver(self.name)
        self.broker.subscriber(self.name)
        if scope["method"] == "HEAD":
            await self._begin(send)
            await send({"type": "http.response.body", "body": b""})
            return
        self._line = scope["extensions"]["hitbox"]
        with self.admit(self):
            mailbox = await self._attach(owner)
            try:
                await self._run(mailbox, receive, send)
            finally:
                self._stop_timer()
                await self.broker.detach(mailbox, self)
            code, reason = self.close_with or (1000, "")
            body = b"event: closed\ndata: %b\n\n" % msgspec.json.encode({"code": code, "reason": reason})
            await send({"type": "http.response.body", "body": body})

    async def _begin(self, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _attach(self, owner: str) -> Mailbox:
        is_resumed = self.query.ack == "sent"
        window = MOST if is_resumed else self.query.window
        mailbox = await self.broker.attach(self.name, self, window, None, owner)
        try:
            before = [seq for _, seq in mailbox.written]
            mailbox.written = self._written
            if is_resumed and self.last:
                received = [self.last]
                if self.last in before and not mailbox.subscriber.options.shared:  # else others have got them since
                    received = before[: before.index(self.last) + 1]
                asked = self.tracker.acknowledge(mailbox, received)
                if asked is not None:
                    await asked
        except BaseException:
            await self.broker.detach(mailbox, self)
            raise
        return mailbox

    async def _run(self, mailbox: Mailbox, receive: Receive, send: Send) -> None:
        async def write(text: bytes) -> None:
            await send({"type": "http.response.body", "body": text, "more_body": True})

        await self._begin(send)
        await write(HELLO)
        steps = (self._send(mailbox, write), _beat(write), _gone(receive), self.ended.wait())
        async with until_one_ends(*steps) as problems:
            for problem in problems:
                if isinstance(problem, HitboxError):
                    self.broker.statistics.count_refusal(status_of(problem))
                    self.close(close_code(problem), str(problem).partition("\n")[0])
                else:
                    text = "an event stream of subscriber %r failed"
                    log.error(text, self.name, exc_info=without_message(problem))
                    self.close(1011, "unexpected error; see the broker's log")

    async def _send(self, mailbox: Mailbox, write: Write) -> None:
        store = self.tracker.incarnation.encode()
        while deliveries := await self.next(mailbox):
            texts = zip(deliveries, await self.encoded(deliveries, Delivery.encode), strict=True)
            self._is_stuck = True
            await write(b"".join([b"id: %b-%d\ndata: %b\n\n" % (store, d.seq, text) for d, text in texts]))
            await write(b"")  # waits until the client has read enough; the write before it does not
            self._is_stuck = False
            self.tracker.sent(mailbox, deliveries)
            if self.query.ack == "sent":
                self._remember(mailbox, deliveries)

    # ---- acknowledged when sent

    def _remember(self, mailbox: Mailbox, deliveries: list[Delivery]) -> None:
        now = time.monotonic()
        self._written.extend((now, d.seq) for d in deliveries)
        self._confirm(mailbox)

    def _confirm(self, mailbox: Mailbox) -> None:
        """Acknowledge what was written long enough ago, and come back for the next."""
        self._stop_timer()
        wait = min(CONFIRM_SECONDS, mailbox.subscriber.options.visibility_seconds / 2)
        now, seqs = time.monotonic(), []
        while self._written and self._written[0][0] + wait <= now and not self._is_stuck:
            seqs.append(self._written.popleft()[1])
        if seqs:
            self.tracker.acknowledge(mailbox, seqs)
        if self._written:
            again = wait if self._is_stuck else self._written[0][0] + wait - now
            self._timer = asyncio.get_running_loop().call_later(again, self._confirm, mailbox)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _beat(write: Write) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        await write(HEARTBEAT)


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
