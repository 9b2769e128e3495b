"""Deliveries over a WebSocket, /v1/connect: JSON messages, one object each.

    client                                                     broker
    {"type": "hello", "subscriber": "ann", "window": 256}      {"type": "welcome", "pending": 3, ...}
    {"type": "subscribe", "request": 1, "put": [...]}          {"type": "done", "request": 1, "warnings": []}
    {"type": "publish", "request": 2, "items": [...]}          {"type": "done", "request": 2, "first": 7}
                                                               {"type": "deliveries", "first": 1, "deliveries": [...]}
    {"type": "ack", "ranges": [[1, 40], [43, 43]]}
    {"type": "ack", "seqs": [7, 8]}
    {"type": "nack", "seqs": [9]}                              sent again later; after max_tries a dead letter
    {"type": "extend", "seqs": [10, 11]}                       their time-out starts again
    {"type": "window", "size": 1000}
                                                               {"type": "error", "request": 1, "error": {...}}

One message carries many deliveries. They are numbered on each connection, from 1 on: `first` is the number of the first
one. An "ack" names ranges of these numbers, both ends included; [1, n] is everything up to n. Numbers that were not
sent, or are acknowledged or refused already, are ignored, so ranges may overlap. `seqs` names events instead, for a
delivery that came on an earlier connection.

"format": "cloudevents" in a hello asks for deliveries with a whole CloudEvent, with its data, in "cloudevent".

"put" in a hello creates subscriptions together with the subscriber, all or none; the welcome has "warnings" about them,
and "new" says whether this connection made the subscriber; "incarnation" tells a broker that was restored from a backup
from what it was before: with "seq" it identifies a delivery. Flow control: at most `window` deliveries are sent and not
yet acknowledged; a "window" message changes this at any time. A delivery that is not acknowledged within the
subscriber's `visibility_seconds` is sent again. That time starts when the delivery is written to the connection, and
starts again at each "extend" that names it. A client may extend as often as needed: deliveries that still wait in the
client, and those that it works on. With "ephemeral": true the subscriber and its subscriptions exist as long as the
connection, get live events only, and acknowledge nothing. An ephemeral subscriber without a name is given one. A
browser cannot set headers, so it sends its token as the subprotocol "bearer.TOKEN" next to "hitbox.json.2".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from hitbox.broker.access.rights import PUBLISH, SUBSCRIBE, Caller, Need
from hitbox.broker.broker import Broker
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.delivery.receiver import Receiver
from hitbox.broker.events.cloudevents import as_cloudevent
from hitbox.broker.events.json_text import LARGE, decode, decode_list
from hitbox.broker.events.published_event import PublishedEvent, answered
from hitbox.broker.http.auth import PROTOCOL, RateLimiter
from hitbox.broker.http.connections import WebSocketProtocol
from hitbox.broker.http.error_responses import close_code, describe, status_of
from hitbox.broker.http.steps import Ending, until_one_ends
from hitbox.broker.logs import without_message
from hitbox.broker.settings import Options, Settings, check_name, check_options
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.errors import HitboxError
from hitbox.protocol.errors import BadRequest, TooLarge

MOST = 10_000
ACK, ACK_BYTES = b'{"type":"ack"', 1_000
MANY = 100
"""After a message with more numbers than this, other connections get a turn."""
Window = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seqs = Annotated[list[int], msgspec.Meta(max_length=MOST)]
EMPTY = msgspec.Raw(b"[]")
T = TypeVar("T")
log = logging.getLogger("hitbox.broker")


class _Message(msgspec.Struct, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages of the client."""


class Hello(_Message, tag="hello"):
    subscriber: str = ""
    ephemeral: bool = False
    window: Window = 256
    options: Options | None = None
    put: list[Subscription] = []
    format: Literal["hitbox", "cloudevents"] = "hitbox"


class Subscribe(_Message, tag="subscribe"):
    put: list[Subscription] = []
    remove: list[str] = []
    request: int = 0


class Publish(_Message, tag="publish"):
    items: list[PublishedEvent]
    request: int = 0


class Ack(_Message, tag="ack"):
    ranges: Annotated[list[tuple[Number, Number]], msgspec.Meta(max_length=MOST)] = []
    seqs: Seqs = []


class Nack(_Message, tag="nack"):
    seqs: Seqs


class Extend(_Message, tag="extend"):
    seqs: Seqs


class SetWindow(_Message, tag="window"):
    size: Window


class LargeHello(Hello, tag="hello"):
    """A hello whose batch is not decoded yet, and so the other two."""

    put: msgspec.Raw = EMPTY  # type: ignore[assignment]

    def whole(self, settings: Settings) -> Hello:
        fields = msgspec.structs.asdict(self)
        return Hello(**fields | {"put": _batch(self.put, Subscription, settings)})


class LargeSubscribe(Subscribe, tag="subscribe"):
    put: msgspec.Raw = EMPTY  # type: ignore[assignment]
    remove: msgspec.Raw = EMPTY  # type: ignore[assignment]

    def whole(self, settings: Settings) -> Subscribe:
        put, remove = _batch(self.put, Subscription, settings), _batch(self.remove, str, settings)
        return Subscribe(put, remove, self.request)


class LargePublish(Publish, tag="publish"):
    items: msgspec.Raw  # type: ignore[assignment]

    def whole(self, settings: Settings) -> Publish:
        most, most_bytes = settings.max_batch, settings.sent_event_bytes()
        return Publish(decode_list(self.items, PublishedEvent, most, most_bytes), self.request)


class Request(msgspec.Struct):
    """The number in a message whose batch is too large."""

    request: int = 0


def _batch(text: msgspec.Raw, type: type[T], settings: Settings) -> list[T]:
    return decode_list(text, type, settings.max_batch, settings.single_bytes())


Large = LargeHello | LargeSubscribe | LargePublish
Message = Hello | Subscribe | Publish | Ack | Nack | Extend | SetWindow
OF_SUBSCRIBERS: list[type[_Message]] = [Hello, Subscribe, Ack, Nack, Extend, SetWindow]
FRAMES: dict[type[_Message], Need] = {Publish: PUBLISH, **dict.fromkeys(OF_SUBSCRIBERS, SUBSCRIBE)}
"""What each message needs. One that is not listed here is not taken."""


class Session(Receiver):
    """One connection of a subscriber."""

    def __init__(self, socket: WebSocket, broker: Broker, rate_limiter: RateLimiter, caller: Caller):
        super().__init__(broker.tracker, caller)
        self.socket, self.broker, self.rate_limiter = socket, broker, rate_limiter
        self._line: WebSocketProtocol = socket.scope["extensions"]["hitbox"]
        self._numbers = DeliveryNumbers()
        self._format = "hitbox"
        self._lookup: asyncio.Future[None] | None = None  # of an acknowledgement; the next message waits for it
        self._ending = Ending(self.ended)

    def discard_unsent(self) -> None:
        self._line.discard_unsent()

    async def run(self) -> None:
        await self.socket.accept(PROTOCOL if PROTOCOL in self.socket.scope["subprotocols"] else None)
        try:
            mailbox = await self._hello()
        except HitboxError as problem:
            await self._fail(problem)
            return
        except (WebSocketDisconnect, RuntimeError):
            return
        async with until_one_ends(self._receive(mailbox), self._send(mailbox), self._ending.wait()) as problems:
            self._line.take = None
            await self.broker.detach(mailbox, self)
            for one in problems:
                if isinstance(one, HitboxError):
                    await self._fail(one)
                elif not isinstance(one, (WebSocketDisconnect, RuntimeError)):
                    text = "a connection of subscriber %r failed"
                    log.error(text, mailbox.subscriber.name, exc_info=without_message(one))
                    self.close(1011, "unexpected error; see the broker's log")
            await self._close()

    async def _hello(self) -> Mailbox:
        seconds = self.broker.settings.hello_seconds
        try:
            async with asyncio.timeout(seconds):
                hello = await self._next_message(await receive(self.socket))
        except TimeoutError:
            raise BadRequest(f"no hello arrived within {seconds:g} seconds") from None
        if not isinstance(hello, Hello):
            raise BadRequest('the first message must be {"type": "hello", "subscriber": ...}')
        self._format = hello.format
        check_batch(self.broker, len(hello.put))
        warnings: list[str] = []
        new = hello.subscriber not in self.broker.registry.by_name
        if hello.ephemeral:
            name = check_name(hello.subscriber or f"live-{secrets.token_hex(8)}", "subscriber")
            owner = self.caller.receiver(name) if hello.subscriber else self.caller.own_name()
            mailbox = self.broker.attach_ephemeral(name, self, hello.options or Options("drop_oldest", 10_000), owner)
        else:
            name = check_name(hello.subscriber, "subscriber")
            owner = self.caller.receiver(name)
            if hello.options is not None:
                check_options(hello.options, False)  # check first: storing the subscriptions creates the subscriber
            if hello.put:
                warnings = await self.broker.subscribe(name, hello.put, owner=owner)
            mailbox = await self.broker.attach(name, self, hello.window, hello.options, owner)
        try:
            if hello.ephemeral and hello.put:
                warnings = await self.broker.subscribe(name, hello.put, owner=owner)
            welcome = {"type": "welcome", **mailbox.describe(), "new": new, "warnings": warnings}
            await self._send_message({**welcome, "incarnation": self.tracker.incarnation})
        except BaseException:
            await self.broker.detach(mailbox, self)
            raise
        return mailbox

    async def _next_message(self, text: bytes) -> Any:
        """A message that the caller may send, decoded in a thread if it is large."""
        return await asyncio.to_thread(self._message, text) if len(text) > LARGE else self._message(text)

    def _message(self, text: bytes) -> Any:
        """A message that the caller may send now. A publish is answered, also if it is not allowed."""
        message = decode_message(text, Message, Large, self.broker.settings)
        need = FRAMES[type(message)]
        if need is not PUBLISH:
            self.caller.check(need)
        return message

    async def _receive(self, mailbox: Mailbox) -> None:
        self._line.take = partial(self._take_ack, mailbox)
        while True:
            await self._handle(mailbox, await receive(self.socket))

    async def _handle(self, mailbox: Mailbox, text: bytes) -> None:
        """Do what a message says. Nothing of it stays in memory while the next one is awaited."""
        if self._lookup is not None:
            await self._lookup
        try:
            message = await self._next_message(text)
        except TooLarge as problem:
            await self._refuse(decode(text, Request).request, problem)
            return
        match message:
            case Ack() | Nack() | Extend():
                await self._handle_delivery_message(mailbox, message)
            case SetWindow():
                mailbox.set_window(self, message.size)
            case Subscribe():
                await self._answer(message.request, self._subscribe(mailbox, message))
            case Publish():
                await self._answer(message.request, self._publish(message, len(text)))
            case _:
                raise BadRequest("a second hello: it may be sent only once")

    def _take_ack(self, mailbox: Mailbox, text: bytes) -> bool:
        """Handle a small acknowledgement without a turn of the event loop; returns whether it was one."""
        if self._lookup is not None or not text.startswith(ACK) or len(text) > ACK_BYTES:
            return False
        try:
            message = self._message(text)
            seqs = self._acknowledged(message)
        except HitboxError:
            return False  # it is queued, and `_receive` says what is wrong
        try:
            self._lookup = self.tracker.acknowledge(mailbox, seqs)
        except Exception as problem:
            self._ending.fail(problem)
        if self._lookup is not None:
            self._lookup.add_done_callback(self._looked_up)
        return True

    def _acknowledged(self, message: Ack) -> list[int]:
        """The events whose deliveries a message acknowledges."""
        self._numbers.forget(message.seqs)
        return self._numbers.take(message.ranges) + message.seqs

    def _looked_up(self, _: asyncio.Future[None]) -> None:
        self._lookup = None

    async def _handle_delivery_message(self, mailbox: Mailbox, message: Ack | Nack | Extend) -> None:
        """Apply an ack, nack or extend. Looking up unknown numbers delays only the connection that sent them."""
        match message:
            case Ack():
                asked = self.broker.tracker.acknowledge(mailbox, self._acknowledged(message))
                if asked is not None:
                    await asked
            case Nack():
                self._numbers.forget(message.seqs)
                self.broker.tracker.refuse(mailbox, message.seqs, self)
            case Extend():
                mailbox.extend(message.seqs, self)
        if len(message.seqs) > MANY or (isinstance(message, Ack) and len(message.ranges) > MANY):
            await asyncio.sleep(0)

    async def _answer(self, request: int, work: Any) -> None:
        """Send the result of a request, or its error; the connection stays open."""
        try:
            await self._send_message({"type": "done", "request": request, **await work})
        except HitboxError as problem:
            await self._refuse(request, problem)

    async def _refuse(self, request: int, problem: HitboxError) -> None:
        self.broker.statistics.count_refusal(status_of(problem))
        await self._send_message({"type": "error", "request": request, **describe(problem)})

    async def _subscribe(self, mailbox: Mailbox, message: Subscribe) -> dict[str, Any]:
        check_batch(self.broker, len(message.put) + len(message.remove))
        name = mailbox.subscriber.name
        owner = self.caller.receiver(name)
        return {"warnings": await self.broker.subscribe(name, message.put, message.remove, strict=True, owner=owner)}

    async def _publish(self, message: Publish, size: int) -> dict[str, Any]:
        check_count(self.broker, self.rate_limiter, self.caller, len(message.items))
        return answered(message.items, await self.broker.publish(message.items, self.caller, size))

    async def _send(self, mailbox: Mailbox) -> None:
        while deliveries := await self.next(mailbox):
            texts = await self.encoded(deliveries, self._encoded)
            if self.ended.is_set():
                return  # some that come before these may not have been sent
            await self._send_texts([self._frame(mailbox, deliveries, texts)])
            self.tracker.sent(mailbox, deliveries)

    def send_now(self, mailbox: Mailbox) -> bool:
        if self.ended.is_set() or not self._line.can_send():
            return False
        try:
            self.check_rights(mailbox)
            deliveries = self.tracker.ready(mailbox, self)
            if not self.can_send_now(deliveries):
                mailbox.put_back(deliveries)  # `_send` does it
                return False
            if deliveries:
                texts = list(map(self._encoded, deliveries))
                self._line.send_now([self._frame(mailbox, deliveries, texts)])
                self.tracker.sent(mailbox, deliveries)
        except Exception as problem:
            self._ending.fail(problem)
            return False
        if mailbox.ready:
            return False
        mailbox.rest(self)
        return True

    def _frame(self, mailbox: Mailbox, deliveries: list[Delivery], texts: list[bytes]) -> bytes:
        seqs = [] if mailbox.subscriber.ephemeral else [d.seq for d in deliveries]
        return b'{"type":"deliveries","first":%d,"deliveries":[%b]}' % (
            self._numbers.add(seqs, mailbox.outstanding),
            b",".join(texts),
        )

    def _encoded(self, d: Delivery) -> bytes:
        if self._format == "hitbox":
            return d.encode()
        return d.encode(as_cloudevent(self.tracker.incarnation, d.seq, d.time, d.body))

    async def _send_message(self, message: dict[str, Any]) -> None:
        await self._send_texts([msgspec.json.encode(message)])

    async def _send_texts(self, messages: list[bytes]) -> None:
        await send_texts(self.socket, messages)

    async def _fail(self, problem: HitboxError) -> None:
        """Send the error, then close."""
        self.broker.statistics.count_refusal(status_of(problem))
        try:
            await self._send_message({"type": "error", "request": 0, **describe(problem)})
        except (WebSocketDisconnect, RuntimeError):
            return
        self.close(close_code(problem), str(problem).partition("\n")[0])
        await self._close()

    async def _close(self) -> None:
        await close_socket(self.socket, *(self.close_with or (1000, "")))


def decode_message(data: bytes, shape: Any, large: Any, settings: Settings) -> Any:
    """A message of one of the types in `shape`. What may come in batches, `large`, is decoded event by event if it is
    longer than any other message may be."""
    most = settings.single_bytes()
    if len(data) <= most:
        return decode(data, shape)
    found = decode(data, large)
    batches = sum(len(one) for one in msgspec.structs.astuple(found) if isinstance(one, msgspec.Raw))
    if len(data) - batches > most:
        raise TooLarge(f"a message may have at most {most} bytes without what may come in batches")
    return found.whole(settings)


def check_batch(broker: Broker, count: int) -> None:
    if count > broker.settings.max_batch:
        raise TooLarge(f"a batch may have at most {broker.settings.max_batch} values")


def check_count(broker: Broker, rate_limiter: RateLimiter, caller: Caller, count: int) -> None:
    """Raise unless the caller may publish so many events now."""
    try:
        check_batch(broker, count)
        caller.check(PUBLISH)
        rate_limiter.take(caller.name, count, caller.rights().publish_rate)
    except HitboxError:
        broker.statistics.counts["refused"] += count
        raise


async def receive(socket: WebSocket) -> bytes:
    """The next message. Raises WebSocketDisconnect if the client has gone."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    return message.get("bytes") or (message.get("text") or "").encode()  # text if it came in fragments


async def send_texts(socket: WebSocket, messages: list[bytes]) -> None:
    """Send messages that are UTF-8 already. Raises WebSocketDisconnect if the client has gone."""
    try:
        await socket.scope["extensions"]["hitbox"].send_texts(messages)
    except ClientDisconnected:
        raise WebSocketDisconnect(1006) from None


async def close_socket(socket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it may be closed already
        await socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))


class DeliveryNumbers:
    """The deliveries that were sent on a connection and not answered: {number: seq}, numbers ascending.

    A delivery that is sent again after its time-out gets another number, and the one before stays valid. What the
    client has acknowledged or refused has no number any more. What is over for another reason, such as a dead letter
    after a time-out, is left out when there are many: so there are at most four times as many as are outstanding.
    """

    def __init__(self) -> None:
        self._next = 1
        self._seqs: dict[int, int] = {}
        self._latest: dict[int, int] = {}  # {seq: number}
        self._former: dict[int, int] = {}  # the same, of deliveries that were sent again: the number before
        self._many = 2 * MOST

    def add(self, seqs: Sequence[int], outstanding: Callable[[], Set[int]]) -> int:
        """Number deliveries; returns the first number. `outstanding`: what the subscriber may still acknowledge."""
        first = self._next
        self._next += len(seqs)
        if again := self._latest.keys() & seqs:
            for seq in again:
                self._seqs.pop(self._former.get(seq, 0), None)
                self._former[seq] = self._latest[seq]
        self._seqs.update(enumerate(seqs, first))
        self._latest.update(zip(seqs, range(first, self._next), strict=True))
        if len(self._seqs) > self._many:
            self.forget(self._latest.keys() - outstanding())
            self._many = 2 * max(len(self._seqs), MOST)
        return first

    def forget(self, seqs: Iterable[int]) -> None:
        """These were answered, or are over."""
        for numbers in (self._latest, self._former) if self._former else (self._latest,):
            for seq in seqs:
                self._seqs.pop(numbers.pop(seq, 0), None)

    def take(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Forget the deliveries whose numbers are in these ranges; returns them. The cost does not depend on the width
        of the ranges."""
        known, wanted, end = self._seqs, [], 0
        for first, last in sorted(ranges):
            if first > last:
                raise BadRequest(f"the range [{first}, {last}] ends before it begins")
            first = max(first, end + 1)
            if first <= last:
                wanted.append((first, last))
                end = last
        if sum(last - first + 1 for first, last in wanted) <= len(known):
            numbers = chain.from_iterable(range(first, last + 1) for first, last in wanted)
            found = [seq for number in numbers if (seq := known.get(number)) is not None]
        else:
            firsts = [first for first, _ in wanted]
            found = [seq for n, seq in known.items() if (at := bisect_right(firsts, n)) and n <= wanted[at - 1][1]]
        found = list(dict.fromkeys(found)) if self._former else found
        self.forget(found)
        return found
