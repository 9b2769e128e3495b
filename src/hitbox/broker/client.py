"""The client of a broker.

    async with hitbox.Client("http://127.0.0.1:8400") as client:
        await client.publish({"price": 12.5, "city": "Paris"})
        async with client.subscriber("ann") as ann:
            await ann.subscribe("cheap", "price < 20", priority=7)
            async for delivery in ann:                 # acknowledged when the loop asks for the next one
                print(delivery.event, delivery.subscriptions)

`ann.run(callback)` calls a function for each delivery. The delivery is acknowledged when the function returns, and
refused when it raises, so that it is sent again later. With `auto=False` the program itself must call
`await ann.ack(delivery)` or `await ann.nack(delivery)`.

The broker sends a delivery again if it is not acknowledged within `visibility_seconds`. Several times within that span
the client asks for more time (`extend`): for deliveries that wait in the client, and for those in the handler, the
latter for at most `handler_seconds`. A client that has died, or whose event loop is blocked, asks for nothing, so the
broker sends its deliveries again. The number of deliveries that wait in the client adapts to the handler: about one
second of its work, up to `window`.

A lost connection is opened again, with growing pauses, and continues after the last acknowledgement. Subscriptions are
stored in the broker (the client creates those of ephemeral subscribers again). `Client.sync(...)` is the same client
for programs without an event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import ssl
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from hitbox.broker.errors import BadRequest, BrokerError, NotAllowed, Overloaded, StoreFailed
from hitbox.broker.prefetch import PREFETCH_SECONDS, PrefetchWindow
from hitbox.broker.publisher import LARGEST, ConnectionLost, PublishSocket
from hitbox.encoding import inputs
from hitbox.encoding.values import for_json

PROTOCOL = "hitbox.json.2"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
FATAL = {1008: "refused", 4404: "the subscriber was removed", 4409: "another connection of this subscriber took over"}
NO_SOCKET = (400, 403, 404, 405, 426)
"""The status with which a server refuses /v1/publish that does not have it, such as an older broker."""
HEARTBEATS = 4
"""How often the client asks for more time within `visibility_seconds`."""
SHORTEST_HEARTBEAT = 0.02
MOST_NUMBERS = 10_000
"""Maximum of numbers in one message (a limit of the broker), and of acknowledged deliveries that are remembered."""
T = TypeVar("T")
log = logging.getLogger("hitbox.client")


class Delivery(msgspec.Struct, frozen=True):
    """An event for this subscriber, with all its subscriptions that matched; `redelivered`: possibly sent before."""

    seq: int
    level: int
    time: int
    subscriptions: list[str]
    event: dict[str, Any]
    where: str | None = None
    attempt: int = 1
    redelivered: bool = False


class Refused(BrokerError):
    """The broker refused a request. `kind`: name of the broker's error; `position`: place in a predicate's text."""

    def __init__(self, message: str, kind: str = "", status: int = 400, position: int | None = None):
        self.kind, self.status, self.position = kind, status, position
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.kind, self.status, self.position))


class Client:
    """A connection to the broker at `url`; `token` if the broker requires one.

    `timeout`: seconds to wait for an answer. `connect_seconds`: how long to try for a subscriber's first connection;
    None means forever. For an https address, `ca` is a file with the certificates (PEM) to trust instead of the
    system's, and `client_cert` a file with the client's own certificate and key, or a pair of files.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8400",
        token: str | None = None,
        timeout: float = 30.0,
        connect_seconds: float | None = 5.0,
        ca: str | os.PathLike[str] | None = None,
        client_cert: str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    ):
        self.url, self._token = _checked_url(url), _checked_token(token)
        self._tls = _tls_context(ca, client_cert) if self.url.startswith("https:") else None
        self.timeout, self.connect_seconds = timeout, connect_seconds
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._publishing = PublishSocket(lambda: self.open_socket("/v1/publish", timeout))
        self._publish_by_http = False
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, trust_env=False, verify=self._tls or False
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._publishing.close()
        await self._http.aclose()

    async def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send any request of the HTTP API; an error of the broker becomes an exception."""
        content = None if body is None else _encoded(body)
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            response = await self._http.request(method, path, content=content, headers=headers, params=query)
        except httpx.HTTPError as problem:
            raise StoreFailed(
                f"no answer from the broker at {self.url}: {problem or type(problem).__name__}"
            ) from problem
        found, status = _decoded(response.content), response.status_code
        if found is None and response.content:
            raise StoreFailed(
                f"the server at {self.url} is not a broker: {method} {path} returned no JSON (status {status})"
            )
        if status >= 400:
            raise _error(found, status)
        return found

    async def download(
        self, method: str, path: str, file: IO[bytes], progress: Callable[[int, int], object] = lambda done, total: None
    ) -> None:
        """Write the answer to a file. `progress` gets (done, total), in bytes."""
        done = total = 0
        try:
            timeout = httpx.Timeout(self.timeout, read=None)  # the broker may need long to prepare the answer
            async with self._http.stream(method, path, timeout=timeout) as response:
                if response.status_code >= 400:
                    raise _error(_decoded(await response.aread()), response.status_code)
                total = int(response.headers.get("content-length", 0))
                async for chunk in response.aiter_bytes():
                    file.write(chunk)
                    done += len(chunk)
                    progress(done, total)
        except httpx.HTTPError as problem:
            raise StoreFailed(
                f"no complete answer from the broker at {self.url}: {problem or type(problem).__name__}"
            ) from problem
        if done != total:
            raise StoreFailed(f"the answer of the broker at {self.url} ended after {done} of {total} bytes")

    async def publish(self, event: Any, where: str | None = None) -> int:
        """Publish one event; returns its number once it is durable."""
        return await self.publish_many([event], [where])

    async def publish_many(self, events: Any, where: Sequence[str | None] | None = None) -> int:
        """Publish events, all or none; returns the number of the first. Retries if the broker is overloaded. They are a
        list or a table, as in `Index.match_batch`.

        Many calls may be in progress; they share one connection, and what arrives together is stored together.
        """
        rows = inputs.rows(events)
        items = [
            {"event": for_json(event)} if text is None else {"event": for_json(event), "where": text}
            for event, text in zip(rows, where or [None] * len(rows), strict=True)
        ]
        for pause in _pauses():
            try:
                found = await self._publish(items)
                return int(found["first"])
            except (KeyError, TypeError, ValueError):
                raise StoreFailed(f"the server at {self.url} is not a broker: it returned no event number") from None
            except Overloaded as problem:
                if pause >= LONGEST_PAUSE / 2:
                    raise
                await asyncio.sleep(max(pause, problem.retry_after))
        raise AssertionError("pauses do not end")

    async def _publish(self, items: list[dict[str, Any]]) -> Any:
        """Publish over the socket. If there is none, publish by HTTP, which also says what is wrong."""
        content = _encoded(items)
        if self._publish_by_http or len(content) > LARGEST:
            return await self.request("POST", "/v1/events", items)
        try:
            async with asyncio.timeout(self.timeout):
                try:
                    await self._publishing.open()
                except (OSError, InvalidHandshake, ConnectionClosed, InvalidURI) as problem:
                    status = getattr(getattr(problem, "response", None), "status_code", 0)
                    found = await self.request("POST", "/v1/events", items)
                    self._publish_by_http = status in NO_SOCKET  # it has no sockets; the client's rights were enough
                    return found
                found = await self._publishing.publish(content)
        except (ConnectionLost, TimeoutError) as problem:
            reason = str(problem) or f"waited for {self.timeout:g} s"
            raise StoreFailed(
                f"no answer from the broker at {self.url}: {reason}. The events may have been accepted"
            ) from problem
        if found["type"] == "error":
            raise _error(found, found["status"])
        return found

    async def whoami(self) -> dict[str, Any]:
        """The principal of this client's token, and its rights."""
        return dict(await self.request("GET", "/v1/whoami"))

    async def principals(self) -> list[dict[str, Any]]:
        """All principals with their rights."""
        return list((await self.request("GET", "/v1/principals"))["principals"])

    async def put_principal(
        self, name: str, roles: Iterable[str], *, names: str = "*", publish: str = "", see: str = ""
    ) -> None:
        """Create a principal, or replace its rights. `names`: the subscribers that it may use, such as "team-a.*";
        `publish` and `see`: predicates, what it may publish and see (empty: everything)."""
        body = {"roles": list(roles), "names": names, "publish": publish, "see": see}
        await self.request("PUT", f"/v1/principals/{quote(name, safe='')}", body)

    async def remove_principal(self, name: str) -> None:
        """Remove a principal and its tokens."""
        await self.request("DELETE", f"/v1/principals/{quote(name, safe='')}")

    async def tokens(self) -> list[dict[str, Any]]:
        """All tokens, without their secrets."""
        return list((await self.request("GET", "/v1/tokens"))["tokens"])

    async def create_token(
        self, principal: str, roles: Iterable[str] | None = None, expires: float | None = None, note: str = ""
    ) -> dict[str, Any]:
        """Create a token; its text is in "token", and is shown only now. `roles`: fewer than the principal has;
        `expires`: seconds since 1970."""
        limits = {"roles": None if roles is None else list(roles), "expires": expires, "note": note}
        return dict(await self.request("POST", "/v1/tokens", {"principal": principal, **limits}))

    async def limit_token(
        self, id: str, roles: Iterable[str] | None = None, expires: float | None = None
    ) -> dict[str, Any]:
        """Give a token fewer roles, or an earlier expiry."""
        body = {"roles": None if roles is None else list(roles), "expires": expires}
        return dict(await self.request("PUT", f"/v1/tokens/{quote(id, safe='')}", body))

    async def revoke_token(self, id: str) -> None:
        """Revoke a token; its connections are closed."""
        await self.request("DELETE", f"/v1/tokens/{quote(id, safe='')}")

    def subscriber(
        self,
        name: str = "",
        *,
        ephemeral: bool = False,
        auto: bool = True,
        window: int = 256,
        handler_seconds: float = 600.0,
        subscriptions: Iterable[Mapping[str, Any]] = (),
        **options: Any,
    ) -> Subscriber:
        """A subscriber; `async with` connects it. `options`: its options (policy, limit, visibility_seconds, ...).

        `window`: how many unacknowledged deliveries the client may have. `handler_seconds`: how long the client asks
        for more time for a delivery in the handler. `subscriptions` (name, where, priority, about) are created together
        with the subscriber, all or none.
        """
        hello: dict[str, Any] = {"type": "hello", "subscriber": name, "ephemeral": ephemeral}
        if options:
            hello["options"] = options
        return Subscriber(self, hello, auto, window, handler_seconds, [dict(one) for one in subscriptions])

    def open_socket(self, path: str, seconds: float | None) -> Any:
        address = "ws" + self.url[len("http") :] + path
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        return connect(
            address,
            additional_headers=headers,
            ssl=self._tls,
            subprotocols=[Subprotocol(PROTOCOL)],
            max_size=None,
            compression=None,
            proxy=None,
            open_timeout=seconds,
        )

    @classmethod
    def sync(cls, *args: Any, **named: Any) -> SyncClient:
        """A client for programs without an event loop."""
        return SyncClient(*args, **named)


class Subscriber:
    """A connected subscriber; it reconnects when its connection is lost."""

    def __init__(
        self,
        client: Client,
        hello: dict[str, Any],
        auto: bool,
        window: int,
        handler_seconds: float,
        subscriptions: list[dict[str, Any]],
    ):
        self._client, self._hello, self.auto, self.handler_seconds = client, hello, auto, handler_seconds
        self._socket: ClientConnection | None = None
        self._waiting: OrderedDict[int, Delivery] = OrderedDict()  # received, not handed out yet
        self._working: dict[int, float] = {}  # in the handler: since when
        self._acked: OrderedDict[int, int] = OrderedDict()  # acknowledged on this connection: attempt
        self._arrived = asyncio.Event()
        self._fatal_error: BrokerError | None = None
        self._prefetch = PrefetchWindow(window)
        self._heartbeat_seconds = SHORTEST_HEARTBEAT
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests = itertools.count(1)
        self._subscriptions = {one["name"]: one for one in subscriptions}
        self._acks: list[int] = []
        self._numbers: dict[int, int] = {}  # of deliveries on this connection: {seq: number}
        self._flush: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_error = ""
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
                " Is `hitbox serve` running there? (connect_seconds sets how long to try)"
            ) from None
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._send_acks()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()

    # ---- requests

    async def subscribe(
        self, name: str, where: str, *, priority: int = 4, about: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Add or replace a subscription; returns warnings."""
        one = {"name": name, "where": where, "priority": priority, "about": for_json(about or {})}
        found = await self._request({"type": "subscribe", "put": [one]})
        if self._hello["ephemeral"]:
            self._subscriptions[name] = one
        return list(found["warnings"])

    async def unsubscribe(self, name: str) -> None:
        await self._request({"type": "subscribe", "remove": [name]})
        self._subscriptions.pop(name, None)

    async def ack(self, *deliveries: Delivery | int) -> None:
        """Acknowledge deliveries; several calls are sent as one message."""
        for one in deliveries:
            seq, attempt = (one, 1) if isinstance(one, int) else (one.seq, one.attempt)
            self._working.pop(seq, None)
            self._waiting.pop(seq, None)
            self._acked[seq] = attempt
            if len(self._acked) > MOST_NUMBERS:
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
        await self._send_numbers("nack", seqs)

    async def extend(self, *deliveries: Delivery | int) -> None:
        """Ask for more time: `visibility_seconds` and `handler_seconds` of these deliveries start again now."""
        seqs, now = _numbers(deliveries), time.monotonic()
        self._working.update((seq, now) for seq in seqs if seq in self._working)
        await self._send_numbers("extend", seqs)

    async def _send_acks(self) -> None:
        self._flush = None
        seqs, self._acks = self._acks, []
        numbers: list[int] = []
        earlier: list[int] = []  # that came on an earlier connection
        for seq in seqs:
            number = self._numbers.pop(seq, 0)
            (numbers if number else earlier).append(number or seq)
        if not await self._send_ranges(_ranges(numbers)) or not await self._send_numbers("ack", earlier):
            self._acks = seqs + self._acks  # sent again after the next hello

    async def _send_ranges(self, ranges: list[tuple[int, int]]) -> bool:
        for start in range(0, len(ranges), MOST_NUMBERS):
            if not await self._send({"type": "ack", "ranges": ranges[start : start + MOST_NUMBERS]}):
                return False
        return True

    async def _send_numbers(self, kind: str, seqs: Sequence[int]) -> bool:
        for start in range(0, len(seqs), MOST_NUMBERS):
            if not await self._send({"type": kind, "seqs": seqs[start : start + MOST_NUMBERS]}):
                return False
        return True

    async def _send(self, message: dict[str, Any]) -> bool:
        try:
            if self._socket is not None:
                await self._socket.send(_encoded(message).decode())
                return True
        except ConnectionClosed:
            pass
        return False

    async def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer; sent again on the next connection if this one is lost."""
        try:
            async with asyncio.timeout(self._client.timeout):
                return await self._request_until_answered(message)
        except TimeoutError:
            why = f": {self._last_error}" if self._socket is None and self._last_error else ""
            raise StoreFailed(
                f"no answer from the broker at {self._client.url} within {self._client.timeout:g} s{why}"
            ) from None

    async def _request_until_answered(self, message: dict[str, Any]) -> dict[str, Any]:
        while True:
            request = next(self._requests)
            answer = self._answers[request] = asyncio.get_running_loop().create_future()
            try:
                if await self._send({**message, "request": request}):
                    found: dict[str, Any] = await answer
                    if found["type"] == "error":
                        raise _error(found, 400)
                    return found
            except ConnectionClosed:
                pass
            finally:
                self._answers.pop(request, None)
            if self._task is None or self._task.done():
                raise StoreFailed("the connection to the broker is closed")
            await asyncio.sleep(FIRST_PAUSE)

    # ---- receiving

    async def _next(self) -> Delivery:
        """The next delivery; it is in the handler from now on."""
        self._prefetch.handler_ready(time.monotonic())
        while not self._waiting:
            if self._fatal_error is not None:
                raise self._fatal_error
            if self._starved():
                await self._send_window()
            self._arrived.clear()
            if not self._waiting:
                await self._arrived.wait()
        seq, found = self._waiting.popitem(last=False)
        now = time.monotonic()
        if not self._hello["ephemeral"]:
            self._working[seq] = now
        if self._prefetch.handed_out(now) and self._socket is not None:
            await self._send_window()
        return found

    def _starved(self) -> bool:
        """Whether all deliveries of the window are in the handler."""
        return self._socket is not None and self._prefetch.granted <= len(self._working) < self._prefetch.most

    async def _send_window(self) -> None:
        """Tell the broker the window: the deliveries in the handler, plus those to fetch in advance."""
        size = self._prefetch.grant(len(self._working))
        if not self._hello["ephemeral"]:
            await self._send({"type": "window", "size": size})

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while True:
            found = await self._next()
            yield found
            if self.auto:
                await self.ack(found)

    async def run(self, callback: Callable[[Delivery], Awaitable[None] | None]) -> None:
        """Call `callback` for each delivery until cancelled. An exception is logged, and the delivery is refused."""
        while True:
            found = await self._next()
            try:
                result = callback(found)
                if result is not None:
                    await result
            except Exception:
                log.exception(
                    "the handler of subscriber %r failed on event %d (attempt %d); the delivery is refused",
                    self.name, found.seq, found.attempt,
                )  # fmt: skip
                await self.nack(found)
            else:
                if self.auto:
                    await self.ack(found)

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
            await self._send_numbers("extend", mine)

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
        pauses = _pauses()
        while True:
            try:
                async with self._client.open_socket("/v1/connect", self._client.connect_seconds) as socket:
                    await self._greet(socket)
                    pauses = _pauses()
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
                if not (self.connections and _is_temporary(problem)):
                    self._end(problem)
                    return
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
            await asyncio.sleep(next(pauses))

    async def _greet(self, socket: ClientConnection) -> None:
        ephemeral = self._hello["ephemeral"]
        hello = {**self._hello, "window": self._prefetch.grant(len(self._working))}
        if self._subscriptions and (ephemeral or not self.connections):
            hello["put"] = list(self._subscriptions.values())
        await socket.send(_encoded(hello).decode())
        async with asyncio.timeout(self._client.connect_seconds):
            welcome = msgspec.json.decode(await socket.recv())
        if welcome["type"] != "welcome":
            raise _error(welcome, 400)
        self.name, self.warnings = welcome["name"], welcome["warnings"]
        for warning in self.warnings:
            log.warning("%s", warning)
        visible = welcome["options"]["visibility_seconds"]
        self._heartbeat_seconds = max(visible / HEARTBEATS, SHORTEST_HEARTBEAT)
        self._prefetch.horizon = min(PREFETCH_SECONDS, visible / 2)
        self._numbers.clear()
        self._acked.clear()  # acknowledgements may have been lost with the old connection
        if not ephemeral:
            self._waiting.clear()  # not handed out yet: the broker sends them again, in order
        if self._last_error:
            log.warning("connected to the broker at %s", self._client.url)
        self._socket, self._last_error = socket, ""
        self.connections += 1
        await self._send_acks()
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def _listen(self, socket: ClientConnection) -> None:
        while True:
            message = msgspec.json.decode(await socket.recv())
            if message["type"] == "deliveries":
                numbered = "first" in message and not self._hello["ephemeral"]  # an older broker has no numbers
                for number, row in enumerate(message["deliveries"], message.get("first", 0)):
                    delivery = msgspec.convert(row, Delivery)
                    if numbered:
                        self._numbers[delivery.seq] = number
                    self._receive_delivery(delivery)
            elif message["request"] in self._answers:
                answer = self._answers[message["request"]]
                if not answer.done():
                    answer.set_result(message)

    def _fatal(self, problem: BaseException) -> BrokerError | None:
        closed = problem.rcvd if isinstance(problem, ConnectionClosed) else None
        if closed is not None and closed.code in FATAL:
            return Refused(closed.reason or FATAL[closed.code], "closed", closed.code)
        response = getattr(problem, "response", None)
        if response is not None and response.status_code in (401, 403):
            return NotAllowed(f"the broker refused the connection: {_text(problem)}")
        return None

    def _connection_lost(self, problem: BaseException) -> None:
        self._socket = None
        text = _text(problem)
        if not self._last_error:
            log.warning("no connection to the broker at %s, trying again: %s", self._client.url, text)
        self._last_error = text
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionClosed(None, None))

    def _end(self, problem: BrokerError) -> None:
        self._socket, self._fatal_error = None, problem
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(problem)
        if not self._hello["ephemeral"]:
            self._waiting.clear()  # the broker still has them
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(problem)
        self._arrived.set()


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
        httpx.URL(url)  # raises for an invalid URL, as does `port` below for an invalid port
        if good and parts.port != 0:
            return url.rstrip("/")
    except (ValueError, httpx.InvalidURL):
        pass
    raise BadRequest(f"{url!r:.200} is not the address of a broker, such as http://127.0.0.1:8400")


def _tls_context(ca: Any, client_cert: Any) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if client_cert is not None:
            files = client_cert if isinstance(client_cert, tuple) else (client_cert,)
            context.load_cert_chain(*files)
    except (OSError, ssl.SSLError) as problem:
        raise BadRequest(f"the files of ca or client_cert cannot be used: {problem}") from None
    return context


def _checked_token(token: str | None) -> str | None:
    if token is not None and not (token.isascii() and token.isprintable()):
        raise BadRequest("a token consists of printable ASCII characters; does it contain a line break?")
    return token


def _encoded(message: Any) -> bytes:
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        raise BadRequest("a text contains a lone surrogate, which cannot be sent: remove it") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise BadRequest(f"this cannot be sent as JSON: {problem}") from None


def _decoded(content: bytes) -> Any:
    """The decoded JSON; None if it is not JSON."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(problem: BaseException) -> str:
    """Why there is no connection: the broker's answer to the handshake, or the error itself."""
    response = getattr(problem, "response", None)
    found = _decoded(response.body or b"") if response is not None else None
    error = found.get("error") if isinstance(found, dict) else None
    said = error.get("message") if isinstance(error, dict) else None
    return str(said or problem) or type(problem).__name__


def _is_temporary(problem: BrokerError) -> bool:
    """Whether to try again: the broker is busy, full or closing, or the name of the lost connection is still taken."""
    kinds = ("Conflict", "StoreFailed", "StoreFull")
    return isinstance(problem, Overloaded) or (isinstance(problem, Refused) and problem.kind in kinds)


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers as ranges, both ends included.

    >>> _ranges([3, 1, 2, 7])
    [(1, 3), (7, 7)]
    """
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number <= found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _numbers(deliveries: Iterable[Delivery | int]) -> list[int]:
    return [one if isinstance(one, int) else one.seq for one in deliveries]


class SyncClient:
    """`Client` for programs without an event loop: it runs an event loop in a thread."""

    def __init__(self, *args: Any, **named: Any):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hitbox-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._do(self._make(*args, **named))
        except BaseException:
            self._end()
            raise
        self._subscribers: weakref.WeakSet[SyncSubscriber] = weakref.WeakSet()

    async def _make(self, *args: Any, **named: Any) -> Client:
        return Client(*args, **named)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise StoreFailed("the client is closed")
        found = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return found.result()
        except CancelledError:
            raise StoreFailed("the client was closed during the call") from None
        except BaseException:
            found.cancel()  # after an interrupt nothing waits for it
            raise

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. Loops over deliveries end, also in other threads."""
        if self._loop.is_closed():
            return
        for one in list(self._subscribers):
            one.close()
        self._do(self._client.close())
        self._end()

    def _end(self) -> None:
        self._do(_end_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        return self._do(self._client.request(method, path, body, **query))

    def download(
        self, method: str, path: str, file: IO[bytes], progress: Callable[[int, int], object] = lambda done, total: None
    ) -> None:
        self._do(self._client.download(method, path, file, progress))

    def publish(self, event: Any, where: str | None = None) -> int:
        return self._do(self._client.publish(event, where))

    def publish_many(self, events: Any, where: Sequence[str | None] | None = None) -> int:
        return self._do(self._client.publish_many(events, where))

    def whoami(self) -> dict[str, Any]:
        return self._do(self._client.whoami())

    def principals(self) -> list[dict[str, Any]]:
        return self._do(self._client.principals())

    def put_principal(
        self, name: str, roles: Iterable[str], *, names: str = "*", publish: str = "", see: str = ""
    ) -> None:
        self._do(self._client.put_principal(name, roles, names=names, publish=publish, see=see))

    def remove_principal(self, name: str) -> None:
        self._do(self._client.remove_principal(name))

    def tokens(self) -> list[dict[str, Any]]:
        return self._do(self._client.tokens())

    def create_token(
        self, principal: str, roles: Iterable[str] | None = None, expires: float | None = None, note: str = ""
    ) -> dict[str, Any]:
        return self._do(self._client.create_token(principal, roles, expires, note))

    def limit_token(self, id: str, roles: Iterable[str] | None = None, expires: float | None = None) -> dict[str, Any]:
        return self._do(self._client.limit_token(id, roles, expires))

    def revoke_token(self, id: str) -> None:
        self._do(self._client.revoke_token(id))

    def listen(
        self, name: str = "", subscriptions: Iterable[Mapping[str, Any]] = (), count: int | None = None, **options: Any
    ) -> SyncSubscriber:
        """Connect, subscribe, and iterate over `count` deliveries (None: forever). Each is acknowledged when the loop
        asks for the next one. With `auto=False` use `ack`, `nack` and `extend` of the returned object.

            with client.listen("ann", auto=False) as ann:
                for delivery in ann:
                    ann.ack(delivery)
        """
        found = SyncSubscriber(self, name, {"subscriptions": list(subscriptions), **options}, count)
        self._subscribers.add(found)
        return found


class SyncSubscriber:
    """The deliveries of a subscriber, for programs without an event loop. It connects when the loop asks for the first
    one, and disconnects at the end of the loop or of a `with`, or when another thread closes it."""

    def __init__(self, client: SyncClient, name: str, options: dict[str, Any], count: int | None):
        self._do, self._thread = client._do, client._thread
        self._subscriber = self._do(_make_subscriber(client._client, name, options))
        self._left = count
        self._last: Delivery | None = None
        self._connected = self._closed = False
        self._asking: asyncio.Task[Any] | None = None

    def __enter__(self) -> SyncSubscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._connected and self._thread.is_alive() and self._thread is not threading.current_thread():
            self.close()

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        found: Delivery | None = None
        try:
            if not self._closed:
                found = self._do(self._advance())
        except StoreFailed:
            if not self._closed:
                self.close()
                raise
        except BaseException:
            self.close()
            raise
        if found is None:
            self.close()
            raise StopIteration
        return found

    async def _advance(self) -> Delivery | None:
        """Acknowledge the last delivery and wait for the next one; None after `count` of them."""
        self._asking = asyncio.current_task()
        if not self._connected:
            await self._subscriber.__aenter__()
            self._connected = True
        if self._last is not None and self._subscriber.auto:
            await self._subscriber.ack(self._last)
        self._last = None
        if self._left == 0:
            return None
        self._last = await self._subscriber._next()
        if self._left is not None:
            self._left -= 1
        return self._last

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._do(self._leave())

    async def _leave(self) -> None:
        if self._asking is not None and not self._asking.done():  # in another thread, or interrupted
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if self._connected:
            self._connected = False
            await self._subscriber.__aexit__()

    @property
    def warnings(self) -> list[str]:
        """Warnings of the broker about the subscriptions."""
        return list(self._subscriber.warnings)

    def ack(self, *deliveries: Delivery | int) -> None:
        """Acknowledge deliveries."""
        self._do(self._subscriber.ack(*deliveries))

    def nack(self, *deliveries: Delivery | int) -> None:
        """Refuse deliveries: the broker sends them again later; after `max_tries` they become dead letters."""
        self._do(self._subscriber.nack(*deliveries))

    def extend(self, *deliveries: Delivery | int) -> None:
        """Ask for more time for deliveries."""
        self._do(self._subscriber.extend(*deliveries))


async def _make_subscriber(client: Client, name: str, options: dict[str, Any]) -> Subscriber:
    return client.subscriber(name, **options)


async def _end_others() -> None:
    """Cancel all other tasks of this loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, LONGEST_PAUSE)


def _error(found: Any, status: int) -> BrokerError:
    error = found.get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict):
        error = {}
    message = error.get("message") or f"the broker answered with status {status}"
    if status == 429 or error.get("type") == "Overloaded":
        return Overloaded(message, error.get("retry_after", 1.0))
    if status in (401, 403):
        return NotAllowed(message)
    return Refused(message, error.get("type", ""), status, error.get("position"))
