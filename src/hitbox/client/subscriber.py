"""A subscriber's connection: deliveries in, acknowledgements out, and a new connection when one is lost."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from hitbox.client.channel import MOST_NUMBERS, Channel
from hitbox.client.delivery import Delivery, delivery_of
from hitbox.client.errors import closed_error, error_of, is_temporary
from hitbox.client.prefetch import PREFETCH_SECONDS, PrefetchWindow
from hitbox.client.wire import encoded, https_hint, pauses, reason_of
from hitbox.encoding.values import for_json
from hitbox.protocol.errors import BadRequest, BrokerError, StoreFailed

HEARTBEATS = 4
"""How often the client asks for more time within `visibility_seconds`."""
SHORTEST_HEARTBEAT = 0.02
log = logging.getLogger("hitbox.client")


State = Literal["connected", "lost", "reconnecting", "closed"]
StateCallback = Callable[[State, str], object]
"""Gets the state of a subscriber's connection, and the reason for it if it is not connected."""


class Server(Protocol):
    """What a subscriber needs to know of its client."""

    url: str
    timeout: float
    connect_seconds: float | None

    def open_socket(self, path: str, seconds: float | None) -> Any: ...


class Subscriber:
    """A connected subscriber, made by `Client.subscriber`; it reconnects when its connection is lost::

        async with client.subscriber("ann") as ann:
            await ann.subscribe("cheap", "price < 20")
            async for delivery in ann:
                print(delivery.event, delivery.subscriptions)

    Its methods raise a BrokerError, such as `BadPredicate` from `subscribe`, or `StoreFailed` if there is no answer.
    """

    def __init__(
        self,
        client: Server,
        hello: dict[str, Any],
        auto: bool,
        window: int,
        handler_seconds: float,
        subscriptions: list[dict[str, Any]],
        on_state: StateCallback | None = None,
    ):
        self._client, self._hello, self.auto, self.handler_seconds = client, hello, auto, handler_seconds
        self._on_state = on_state
        self._channel = Channel()
        self._waiting: OrderedDict[int, Delivery] = OrderedDict()  # received, not handed out yet
        self._working: dict[int, float] = {}  # in the handler: since when
        self._acked: OrderedDict[int, int] = OrderedDict()  # acknowledged on this connection: attempt
        self._arrived = asyncio.Event()
        self._fatal_error: BrokerError | None = None
        self._refusal: BrokerError | None = None  # what the broker said before it closed the connection
        self._prefetch = PrefetchWindow(window)
        self._heartbeat_seconds = SHORTEST_HEARTBEAT
        self._subscriptions = {subscription["name"]: subscription for subscription in subscriptions}
        self._acks: list[int] = []
        self._numbers: dict[int, int] = {}  # of deliveries on this connection: {seq: number}
        self._flush: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_error = self._incarnation = ""
        self.name = hello["subscriber"]
        self.warnings: list[str] = []
        self.connections = 0

    async def __aenter__(self) -> Subscriber:
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._stay_connected())
        seconds = self._client.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.__aexit__()
            raise StoreFailed(
                f"no broker answers at {self._client.url} ({self._last_error or 'no answer'}); tried for {seconds:g} s."
                " Is `hitbox serve` running there? (connect_seconds, or --wait, sets how long to try)"
            ) from None
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, after the acknowledgements have been sent. A task that waits for a delivery gets an error."""
        await self._send_acks()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._channel.socket is not None:
            await self._channel.socket.close()
        self._arrived.set()
        if self._fatal_error is None:
            self._tell("closed", "the program closed it")

    def _tell(self, state: State, reason: str = "") -> None:
        """Tell the program about the connection. Its errors are logged: they must not end the connection."""
        if self._on_state is None:
            return
        try:
            self._on_state(state, reason)
        except Exception:
            log.exception("the callback on_state of subscriber %r failed on %r", self.name, state)

    # ---- requests

    async def subscribe(
        self, name: str, where: str, *, priority: int = 4, about: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Add or replace a subscription; returns warnings."""
        subscription = {"name": name, "where": where, "priority": priority, "about": for_json(about or {})}
        answer = await self._request({"type": "subscribe", "put": [subscription]})
        self._subscriptions[name] = subscription
        return list(answer["warnings"])

    async def unsubscribe(self, name: str) -> None:
        """Remove a subscription."""
        await self._request({"type": "subscribe", "remove": [name]})
        self._subscriptions.pop(name, None)

    async def ack(self, *deliveries: Delivery | int) -> None:
        """Acknowledge deliveries; several calls are sent as one message."""
        for delivery in deliveries:
            seq, attempt = (delivery, 1) if isinstance(delivery, int) else (delivery.seq, delivery.attempt)
            self._working.pop(seq, None)
            self._waiting.pop(seq, None)
            self._acked[seq] = attempt
            if len(self._acked) > MOST_NUMBERS:  # enough to remember
                self._acked.popitem(last=False)
        self._acks += _numbers(deliveries)
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(0.005, lambda: asyncio.ensure_future(self._send_acks()))

    async def nack(self, *deliveries: Delivery | int) -> None:
        """Refuse deliveries: the broker sends them again later; after `max_tries` they become dead letters."""
        seqs = _numbers(deliveries)
        for seq in seqs:
            self._working.pop(seq, None)
            self._numbers.pop(seq, None)
        await self._channel.send_parts("nack", "seqs", seqs)

    async def extend(self, *deliveries: Delivery | int) -> None:
        """Ask for more time: `visibility_seconds` and `handler_seconds` of these deliveries start again now."""
        seqs, now = _numbers(deliveries), time.monotonic()
        self._working.update((seq, now) for seq in seqs if seq in self._working)
        await self._channel.send_parts("extend", "seqs", seqs)

    async def _send_acks(self) -> None:
        if self._flush is not None:
            self._flush.cancel()  # it would come after the end of the connection, or of the loop
            self._flush = None
        seqs, self._acks = self._acks, []
        numbers: list[int] = []
        earlier: list[int] = []  # that came on an earlier connection
        for seq in seqs:
            number = self._numbers.pop(seq, 0)
            (numbers if number else earlier).append(number or seq)
        sent = await self._channel.send_parts("ack", "ranges", _ranges(numbers))
        if not sent or not await self._channel.send_parts("ack", "seqs", earlier):
            self._acks = seqs + self._acks  # sent again after the next hello

    async def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer; sent again on the next connection if this one is lost."""
        try:
            async with asyncio.timeout(self._client.timeout):
                return await self._channel.request(message, self._connecting)
        except TimeoutError:
            why = f": {self._last_error}" if self._channel.socket is None and self._last_error else ""
            raise StoreFailed(
                f"no answer from the broker at {self._client.url} within {self._client.timeout:g} s{why}"
            ) from None

    def _connecting(self) -> bool:
        """Whether there is a connection, or may be one again."""
        return self._task is not None and not self._task.done()

    # ---- receiving

    async def next(self, timeout: float | None = None) -> Delivery:
        """The next delivery; it is in the handler from now on. Raises TimeoutError if none comes for `timeout` seconds;
        None: wait for as long as it takes."""
        self._prefetch.handler_ready(time.monotonic())
        try:
            async with asyncio.timeout(timeout):  # around the wait only: a delivery that was taken must not be lost
                await self._wait_for_delivery()
        except TimeoutError:
            raise TimeoutError(f"no delivery came within {timeout:g} s") from None
        seq, delivery = self._waiting.popitem(last=False)
        now = time.monotonic()
        if not self._hello["ephemeral"]:
            self._working[seq] = now
        if self._prefetch.handed_out(now) and self._channel.socket is not None:
            await self._send_window()
        return delivery

    async def _wait_for_delivery(self) -> None:
        while not self._waiting:
            if self._fatal_error is not None:
                raise self._fatal_error
            if not self._connecting():
                raise StoreFailed("the subscriber is not connected: use it inside of `async with`")
            if self._starved():
                await self._send_window()
            self._arrived.clear()
            if not self._waiting:
                await self._arrived.wait()

    def _starved(self) -> bool:
        """Whether all deliveries of the window are in the handler."""
        return self._channel.socket is not None and self._prefetch.granted <= len(self._working) < self._prefetch.most

    async def _send_window(self) -> None:
        """Tell the broker the window: the deliveries in the handler, plus those to fetch in advance."""
        size = self._prefetch.grant(len(self._working))
        if not self._hello["ephemeral"]:
            await self._channel.send({"type": "window", "size": size})

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while True:
            delivery = await self.next()
            yield delivery
            if self.auto:
                await self.finish(delivery)

    async def run(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` for each delivery until cancelled, and wait for it if it is asynchronous. An exception is
        logged, and the delivery is refused."""
        while True:
            delivery = await self.next()
            try:
                result = callback(delivery)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                self.log_failure(delivery)
                await self.nack(delivery)
            else:
                if self.auto:
                    await self.finish(delivery)

    async def finish(self, delivery: Delivery) -> None:
        """Acknowledge a delivery that was handled, unless the program acknowledged or refused it itself."""
        if delivery.seq in self._working:
            await self.ack(delivery)

    def log_failure(self, delivery: Delivery) -> None:
        """Log the current exception, of the handler of a delivery."""
        log.exception(
            "the handler of subscriber %r failed on event %d (attempt %d); the delivery is refused",
            self.name, delivery.seq, delivery.attempt,
        )  # fmt: skip

    def _in_handler(self, seq: int, now: float) -> bool:
        """Whether it is in the handler, for no longer than `handler_seconds` (or two heartbeats, if that is longer)."""
        since = self._working.get(seq)
        return since is not None and now - since < max(self.handler_seconds, 2 * self._heartbeat_seconds)

    async def _heartbeat(self) -> None:
        """Ask for more time regularly for all deliveries here. Does not run while the event loop is blocked."""
        while not self._hello["ephemeral"]:
            await asyncio.sleep(self._heartbeat_seconds)
            now = time.monotonic()
            mine = [seq for seq in self._working if self._in_handler(seq, now)]
            mine += [seq for seq in self._waiting if seq not in self._working]  # no second copy of one in the handler
            await self._channel.send_parts("extend", "seqs", mine)

    def _receive_delivery(self, delivery: Delivery) -> None:
        """Queue a delivery, unless it is a repetition of one that is in the client or has just been acknowledged."""
        seq = delivery.seq
        if seq in self._waiting:
            self._waiting[seq] = delivery
        elif delivery.attempt > self._acked.get(seq, delivery.attempt):
            pass  # the broker sent it again before it got our acknowledgement
        elif not self._in_handler(seq, time.monotonic()):
            self._acked.pop(seq, None)  # a replay, for example: its attempts count from 1 again
            self._waiting[seq] = delivery
            self._arrived.set()

    async def _stay_connected(self) -> None:
        """Connect, and reconnect when the connection is lost."""
        waits = pauses()
        while True:
            try:
                async with self._client.open_socket("/v1/connect", self._client.connect_seconds) as socket:
                    await self._greet(socket)
                    waits = pauses()
                    beat = asyncio.create_task(self._heartbeat())
                    try:
                        await self._listen(socket)
                    finally:
                        beat.cancel()
            except (OSError, InvalidHandshake, ConnectionClosed, TimeoutError) as problem:
                fatal = self._fatal(problem)
                self._connection_lost(problem)
                if fatal is not None:
                    self._end(fatal)
                    return
            except BrokerError as problem:
                if not (self.connections and is_temporary(problem)):
                    self._end(problem)
                    return
                self._connection_lost(problem)
            except InvalidURI as problem:
                self._end(BadRequest(f"{self._client.url!r} is not the address of a broker: {problem}"))
                return
            except Exception as problem:
                self._end(
                    StoreFailed(
                        f"the server at {self._client.url} sent something that a broker does not send: {problem!r}"
                    )
                )
                return
            self._tell("reconnecting", self._last_error)
            await asyncio.sleep(next(waits))

    async def _greet(self, socket: ClientConnection) -> None:
        ephemeral = self._hello["ephemeral"]
        hello = {**self._hello, "window": self._prefetch.grant(len(self._working))}
        if self._subscriptions and (ephemeral or not self.connections):
            hello["put"] = list(self._subscriptions.values())
        await socket.send(encoded(hello).decode())
        async with asyncio.timeout(self._client.connect_seconds):
            welcome = msgspec.json.decode(await socket.recv())
        if welcome["type"] != "welcome":
            raise error_of(welcome)
        self.name, self.warnings = welcome["name"], welcome["warnings"]
        for warning in self.warnings:
            log.warning("%s", warning)
        visible = welcome["options"]["visibility_seconds"]
        self._heartbeat_seconds = max(visible / HEARTBEATS, SHORTEST_HEARTBEAT)
        self._prefetch.horizon = min(PREFETCH_SECONDS, visible / 2)
        self._numbers.clear()
        if self._incarnation not in ("", welcome["incarnation"]):
            self._acks.clear()  # they are of events that this broker does not have, or has under other numbers
        self._incarnation = welcome["incarnation"]
        self._acked.clear()  # acknowledgements may have been lost with the old connection
        if not ephemeral:
            self._waiting.clear()  # not handed out yet: the broker sends them again, in order
        if self._last_error:
            log.warning("connected to the broker at %s", self._client.url)
        self._channel.socket, self._last_error, self._refusal = socket, "", None
        self.connections += 1
        if self._subscriptions and "put" not in hello and welcome.get("new"):  # it expired, or was removed
            log.warning("the broker did not know subscriber %r any more: its subscriptions are made again", self.name)
            put = list(self._subscriptions.values())
            await self._channel.ask({"type": "subscribe", "put": put})
        await self._send_acks()
        self._tell("connected")
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def _listen(self, socket: ClientConnection) -> None:
        while True:
            message = msgspec.json.decode(await socket.recv())
            if message["type"] == "deliveries":
                numbered = "first" in message and not self._hello["ephemeral"]  # an older broker has no numbers
                for number, row in enumerate(message["deliveries"], message.get("first", 0)):
                    delivery = delivery_of(row, self._incarnation)
                    if numbered:
                        self._numbers[delivery.seq] = number
                    self._receive_delivery(delivery)
            elif message["type"] == "error" and not message["request"]:
                self._refusal = error_of(message)  # the broker closes the connection after it
            else:
                self._channel.answered(message)

    def _fatal(self, problem: BaseException) -> BrokerError | None:
        closed = problem.rcvd if isinstance(problem, ConnectionClosed) else None
        if closed is not None and (error := closed_error(closed.code, closed.reason)) is not None:
            return self._refusal or error
        response = getattr(problem, "response", None)
        if response is not None and response.status_code in (401, 403):
            message = f"the broker refused the connection: {reason_of(problem)}"
            return error_of({"error": {"message": message}}, response.status_code)
        return None

    def _connection_lost(self, problem: BaseException) -> None:
        was_connected = self._channel.socket is not None
        self._channel.lost()
        text = reason_of(problem) + https_hint(self._client.url, problem)
        if was_connected:
            self._tell("lost", text)
        if not self._last_error:
            log.warning("no connection to the broker at %s, trying again: %s", self._client.url, text)
        self._last_error = text

    def _end(self, problem: BrokerError) -> None:
        self._fatal_error = problem
        self._channel.lost(problem)
        self._tell("closed", str(problem))
        if not self._hello["ephemeral"]:
            self._waiting.clear()  # the broker still has them
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(problem)
        self._arrived.set()


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers as ranges, both ends included.

    >>> _ranges([3, 1, 2, 7])
    [(1, 3), (7, 7)]
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _numbers(deliveries: Iterable[Delivery | int]) -> list[int]:
    return [delivery if isinstance(delivery, int) else delivery.seq for delivery in deliveries]
