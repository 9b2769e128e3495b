"""Deliveries over a WebSocket, /v1/connect: JSON messages, one object each.

    client                                                     broker
    {"type": "hello", "subscriber": "ann", "window": 256}      {"type": "welcome", "pending": 3, ...}
    {"type": "subscribe", "request": 1, "put": [...]}          {"type": "done", "request": 1, "warnings": []}
    {"type": "publish", "request": 2, "items": [...]}          {"type": "done", "request": 2, "first": 7}
                                                               {"type": "deliveries", "deliveries": [...]}
    {"type": "ack", "seqs": [7, 8]}
    {"type": "nack", "seqs": [9]}                              sent again later; after max_tries a dead letter
    {"type": "extend", "seqs": [10, 11]}                       their time-out starts again
    {"type": "window", "size": 1000}
                                                               {"type": "error", "request": 1, "error": {...}}

"put" in a hello creates subscriptions together with the subscriber, all or none; the welcome has "warnings" about
them. Flow control: at most `window` deliveries are sent and not yet acknowledged; a "window" message changes this at
any time. A delivery that is not acknowledged within the subscriber's `visibility_seconds` is sent again. That time
starts when the delivery is written to the connection, and starts again at each "extend" that names it. A client may
extend as often as needed: deliveries that still wait in the client, and those that it works on. With "ephemeral": true
the subscriber and its subscriptions exist as long as the connection, get live events only, and acknowledge nothing. An
ephemeral subscriber without a name is given one. A browser cannot set headers, so it sends its token as the subprotocol
"bearer.TOKEN" next to "hitbox.v1".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from hitbox.broker.broker import Broker
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.errors import BadRequest, TooLarge
from hitbox.broker.http import request_bodies
from hitbox.broker.http.auth import PROTOCOL, RateLimiter
from hitbox.broker.http.error_responses import describe, status_of
from hitbox.broker.logs import without_message
from hitbox.broker.published_event import PublishedEvent
from hitbox.broker.settings import Options, check_name, check_options
from hitbox.broker.subscriptions import Subscription
from hitbox.errors import HitboxError

MOST = 10_000
MANY = 100
"""After a message with more numbers than this, other connections get a turn."""
Window = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Seqs = Annotated[list[int], msgspec.Meta(max_length=MOST)]
log = logging.getLogger("hitbox.broker")


class _Message(msgspec.Struct, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages of the client."""


class Hello(_Message, tag="hello"):
    subscriber: str = ""
    ephemeral: bool = False
    window: Window = 256
    options: Options | None = None
    put: list[Subscription] = []


class Subscribe(_Message, tag="subscribe"):
    put: list[Subscription] = []
    remove: list[str] = []
    request: int = 0


class Publish(_Message, tag="publish"):
    items: list[PublishedEvent]
    request: int = 0


class Ack(_Message, tag="ack"):
    seqs: Seqs


class Nack(_Message, tag="nack"):
    seqs: Seqs


class Extend(_Message, tag="extend"):
    seqs: Seqs


class SetWindow(_Message, tag="window"):
    size: Window


Message = Hello | Subscribe | Publish | Ack | Nack | Extend | SetWindow


class Session:
    """One connection of a subscriber."""

    def __init__(self, socket: WebSocket, broker: Broker, rate_limiter: RateLimiter, principal: str):
        self.socket, self.broker, self.rate_limiter, self.principal = socket, broker, rate_limiter, principal
        self._close_with: tuple[int, str] | None = None
        self._ended = asyncio.Event()

    def close(self, code: int, reason: str) -> None:
        """Ask for the connection to be closed, without waiting; `run` closes it."""
        self._close_with = self._close_with or (code, reason)
        self._ended.set()

    async def run(self) -> None:
        await self.socket.accept(PROTOCOL if PROTOCOL in self.socket.scope["subprotocols"] else None)
        try:
            mailbox = await self._hello()
        except HitboxError as problem:
            await self._fail(problem)
            return
        except (WebSocketDisconnect, RuntimeError):
            return
        tasks = [
            asyncio.create_task(step) for step in (self._receive(mailbox), self._send(mailbox), self._ended.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self.broker.detach(mailbox, self)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, HitboxError):
                    await self._fail(result)
                elif isinstance(result, Exception) and not isinstance(result, (WebSocketDisconnect, RuntimeError)):
                    text = "a connection of subscriber %r failed"
                    log.error(text, mailbox.subscriber.name, exc_info=without_message(result))
                    self.close(1011, "unexpected error; see the broker's log")
            await self._close()

    async def _hello(self) -> Mailbox:
        seconds = self.broker.settings.hello_seconds
        try:
            async with asyncio.timeout(seconds):
                hello = _decode(await self._text())
        except TimeoutError:
            raise BadRequest(f"no hello arrived within {seconds:g} seconds") from None
        if not isinstance(hello, Hello):
            raise BadRequest('the first message must be {"type": "hello", "subscriber": ...}')
        self._batch(len(hello.put))
        warnings: list[str] = []
        if hello.ephemeral:
            name = check_name(hello.subscriber or f"live-{secrets.token_hex(8)}", "subscriber")
            mailbox = self.broker.attach_ephemeral(name, self, hello.options or Options("drop_oldest", 10_000))
        else:
            name = check_name(hello.subscriber, "subscriber")
            if hello.options is not None:
                check_options(hello.options, False)  # check first: storing the subscriptions creates the subscriber
            if hello.put:
                warnings = await self.broker.subscribe(name, hello.put)
            mailbox = await self.broker.attach(name, self, hello.window, hello.options)
        try:
            if hello.ephemeral and hello.put:
                warnings = await self.broker.subscribe(name, hello.put)
            await self._send_message({"type": "welcome", **mailbox.describe(), "warnings": warnings})
        except BaseException:
            await self.broker.detach(mailbox, self)
            raise
        return mailbox

    async def _text(self) -> str | bytes:
        message = await self.socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        return message.get("text") or message.get("bytes") or b""

    async def _receive(self, mailbox: Mailbox) -> None:
        acts: dict[type, Callable[[Mailbox, Any], Any]] = {
            Subscribe: self._subscribe,
            Publish: self._publish,
        }
        while True:
            message: Any = _decode(await self._text())
            match message:
                case Ack() | Nack() | Extend():
                    await self._handle_delivery_message(mailbox, message)
                case SetWindow():
                    mailbox.window = message.size
                    mailbox.wake.set()
                case Hello():
                    raise BadRequest("a second hello: it may be sent only once")
                case _:
                    await self._answer(message.request, acts[type(message)](mailbox, message))

    async def _handle_delivery_message(self, mailbox: Mailbox, message: Ack | Nack | Extend) -> None:
        """Apply an ack, nack or extend. Looking up unknown numbers delays only the connection that sent them."""
        match message:
            case Ack():
                asked = self.broker.tracker.acknowledge(mailbox, message.seqs)
                if asked is not None:
                    await asked
            case Nack():
                self.broker.tracker.refuse(mailbox, message.seqs)
            case Extend():
                mailbox.extend(message.seqs)
        if len(message.seqs) > MANY:
            await asyncio.sleep(0)

    async def _answer(self, request: int, work: Any) -> None:
        """Send the result of a request, or its error; the connection stays open."""
        try:
            await self._send_message({"type": "done", "request": request, **await work})
        except HitboxError as problem:
            self.broker.statistics.count_refusal(status_of(problem))
            await self._send_message({"type": "error", "request": request, **describe(problem)})

    async def _subscribe(self, mailbox: Mailbox, message: Subscribe) -> dict[str, Any]:
        self._batch(len(message.put) + len(message.remove))
        name = mailbox.subscriber.name
        return {"warnings": await self.broker.subscribe(name, message.put, message.remove, strict=True)}

    async def _publish(self, mailbox: Mailbox, message: Publish) -> dict[str, Any]:
        self._batch(len(message.items))
        self.rate_limiter.take(self.principal, len(message.items))
        return {"first": await self.broker.publish(message.items), "count": len(message.items)}

    def _batch(self, count: int) -> None:
        if count > self.broker.settings.max_batch:
            raise TooLarge(f"a batch may have at most {self.broker.settings.max_batch} values")

    async def _send(self, mailbox: Mailbox) -> None:
        while deliveries := await self.broker.tracker.next(mailbox, self):
            await self.socket.send_text(frame(deliveries))
            self.broker.tracker.sent(mailbox, deliveries)

    async def _send_message(self, message: dict[str, Any]) -> None:
        await self.socket.send_text(msgspec.json.encode(message).decode())

    async def _fail(self, problem: HitboxError) -> None:
        """Send the error, then close: with code 1008 if the client must not try again, otherwise with 1013."""
        status = status_of(problem)
        self.broker.statistics.count_refusal(status)
        try:
            await self._send_message({"type": "error", "request": 0, **describe(problem)})
        except (WebSocketDisconnect, RuntimeError):
            return
        self.close(1013 if status == 429 or status >= 500 else 1008, str(problem).partition("\n")[0])
        await self._close()

    async def _close(self) -> None:
        code, reason = self._close_with or (1000, "")
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it may be closed already
            await self.socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))


def _decode(text: str | bytes) -> Any:
    return request_bodies.decode(text, Message)  # type: ignore[arg-type]


def frame(deliveries: list[Delivery]) -> str:
    return '{"type":"deliveries","deliveries":[' + b",".join([d.encode() for d in deliveries]).decode() + "]}"
