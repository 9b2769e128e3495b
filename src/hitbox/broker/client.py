"""Talk to a broker.

    async with hitbox.Client("http://127.0.0.1:8400") as client:
        await client.publish({"price": 12.5, "city": "Paris"})
        async with client.subscriber("ann") as ann:
            await ann.subscribe("cheap", "price < 20", priority=7)
            async for delivery in ann:                 # acknowledged when the next one is asked for
                print(delivery.event, delivery.subscriptions)

`ann.run(callback)` calls a function for each delivery: acknowledged when it returns, refused when it raises, so that it
comes again later. With `auto=False` nothing is acknowledged but by `await ann.ack(delivery)` or `ann.nack(delivery)`.

A connection that breaks is made again, with growing pauses, and goes on from the last acknowledgement; subscriptions
live in the broker (those of ephemeral subscribers are made again by the client). `Client.sync(...)` is the same for
programs without an event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from hitbox.broker.errors import BrokerError, NotAllowed, Overloaded, StoreFailed
from hitbox.values import for_json

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
FATAL = {1008: "refused", 4404: "the subscriber was removed", 4409: "another connection of this subscriber took over"}
T = TypeVar("T")


class Delivery(msgspec.Struct, frozen=True):
    """An event for this subscriber, with all its subscriptions that matched; `redelivered`: it may have come before."""

    seq: int
    level: int
    time: int
    subscriptions: list[str]
    event: dict[str, Any]
    where: str | None = None
    attempt: int = 1
    redelivered: bool = False


class Refused(BrokerError):
    """The broker said no; `kind` is its error's name, `position` the place in a predicate's text."""

    def __init__(self, message: str, kind: str = "", status: int = 400, position: int | None = None):
        self.kind, self.status, self.position = kind, status, position
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.kind, self.status, self.position))


class Client:
    """A broker, by its address; `token` where it asks for one."""

    def __init__(self, url: str = "http://127.0.0.1:8400", token: str | None = None, timeout: float = 30.0):
        self.url, self._token = url.rstrip("/"), token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Any request of the interface; an error of the broker becomes an exception."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            response = await self._http.request(method, path, content=content, headers=headers, params=query)
        except httpx.HTTPError as problem:
            raise StoreFailed(
                f"no answer from the broker at {self.url}: {problem or type(problem).__name__}"
            ) from problem
        found = msgspec.json.decode(response.content) if response.content else None
        if response.status_code >= 400:
            raise _error(found, response.status_code)
        return found

    async def publish(self, event: Mapping[str, Any], where: str | None = None) -> int:
        """Publish one event; its number, once it is durable."""
        return await self.publish_many([event], [where])

    async def publish_many(self, events: Sequence[Mapping[str, Any]], where: Sequence[str | None] | None = None) -> int:
        """Publish several, all or none; the number of the first. Where the broker is overloaded, wait and try again."""
        items = [
            {"event": for_json(event)} if text is None else {"event": for_json(event), "where": text}
            for event, text in zip(events, where or [None] * len(events), strict=True)
        ]
        for pause in _pauses():
            try:
                found = await self.request("POST", "/v1/events", items)
                return int(found["first"])
            except Overloaded as problem:
                if pause >= LONGEST_PAUSE / 2:
                    raise
                await asyncio.sleep(max(pause, problem.retry_after))
        raise AssertionError("pauses do not end")

    def subscriber(
        self, name: str = "", *, ephemeral: bool = False, auto: bool = True, window: int = 256, **options: Any
    ) -> Subscriber:
        """A subscriber to connect; `options` are those of a subscriber (policy, limit, visibility_seconds, ...)."""
        hello: dict[str, Any] = {"type": "hello", "subscriber": name, "ephemeral": ephemeral, "window": window}
        if options:
            hello["options"] = options
        return Subscriber(self, hello, auto)

    def open_socket(self) -> Any:
        address = "ws" + self.url.removeprefix("http") + "/v1/connect"
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        return connect(address, additional_headers=headers, max_size=None, compression=None, proxy=None)

    @classmethod
    def sync(cls, *args: Any, **named: Any) -> SyncClient:
        """The same without an event loop of one's own."""
        return SyncClient(*args, **named)


class Subscriber:
    """A connection that outlives its sockets."""

    def __init__(self, client: Client, hello: dict[str, Any], auto: bool):
        self._client, self._hello, self.auto = client, hello, auto
        self._socket: ClientConnection | None = None
        self._got: asyncio.Queue[Delivery | BaseException] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests = itertools.count(1)
        self._mine: dict[str, dict[str, Any]] = {}
        self._acks: list[int] = []
        self._flush: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.name = hello["subscriber"]
        self.connections = 0

    async def __aenter__(self) -> Subscriber:
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._stay())
        try:
            await asyncio.shield(self._ready)
        except BaseException:
            self._task.cancel()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._send_acks()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()

    # ---- asking

    async def subscribe(
        self, name: str, where: str, *, priority: int = 4, about: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Add or replace a subscription; warnings come back."""
        one = {"name": name, "where": where, "priority": priority, "about": for_json(about or {})}
        found = await self._ask({"type": "subscribe", "put": [one]})
        if self._hello["ephemeral"]:
            self._mine[name] = one
        return list(found["warnings"])

    async def unsubscribe(self, name: str) -> None:
        await self._ask({"type": "subscribe", "remove": [name]})
        self._mine.pop(name, None)

    async def ack(self, *deliveries: Delivery | int) -> None:
        """Acknowledge; many go out in one message."""
        self._acks += [d if isinstance(d, int) else d.seq for d in deliveries]
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(0.005, lambda: asyncio.ensure_future(self._send_acks()))

    async def nack(self, *deliveries: Delivery | int) -> None:
        """Refuse: the broker sends it again later, at last as a dead letter."""
        await self._say({"type": "nack", "seqs": [d if isinstance(d, int) else d.seq for d in deliveries]})

    async def _send_acks(self) -> None:
        self._flush = None
        seqs, self._acks = self._acks, []
        if seqs and not await self._say({"type": "ack", "seqs": seqs}):
            self._acks = seqs + self._acks  # sent again after the next hello

    async def _say(self, message: dict[str, Any]) -> bool:
        try:
            if self._socket is not None:
                await self._socket.send(msgspec.json.encode(message).decode())
                return True
        except ConnectionClosed:
            pass
        return False

    async def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """A request and its answer; asked again on the next connection where this one breaks."""
        while True:
            request = next(self._requests)
            answer = self._answers[request] = asyncio.get_running_loop().create_future()
            try:
                if await self._say({**message, "request": request}):
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

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while True:
            found = await self._got.get()
            if isinstance(found, BaseException):
                raise found
            yield found
            if self.auto:
                await self.ack(found)

    async def run(self, callback: Callable[[Delivery], Awaitable[None] | None]) -> None:
        """Call `callback` for each delivery, until cancelled; what it raises refuses the delivery."""
        while True:
            found = await self._got.get()
            if isinstance(found, BaseException):
                raise found
            try:
                result = callback(found)
                if result is not None:
                    await result
            except Exception:
                await self.nack(found)
            else:
                if self.auto:
                    await self.ack(found)

    async def _stay(self) -> None:
        """Be connected; come back where the connection breaks."""
        pauses = _pauses()
        while True:
            try:
                async with self._client.open_socket() as socket:
                    await self._greet(socket)
                    pauses = _pauses()
                    await self._listen(socket)
            except (OSError, InvalidHandshake, ConnectionClosed, TimeoutError) as problem:
                fatal = self._fatal(problem)
                self._lost(problem)
                if fatal is not None:
                    self._end(fatal)
                    return
            except BrokerError as problem:
                if not (self.connections and isinstance(problem, Refused) and problem.kind == "Conflict"):
                    self._end(problem)
                    return
                # an ephemeral name that the broker has not noticed to be free yet: again in a moment
            await asyncio.sleep(next(pauses))

    async def _greet(self, socket: ClientConnection) -> None:
        await socket.send(msgspec.json.encode(self._hello).decode())
        welcome = msgspec.json.decode(await socket.recv())
        if welcome["type"] != "welcome":
            raise _error(welcome, 400)
        self.name = welcome["name"]
        if self._mine:
            put = {"type": "subscribe", "request": 0, "put": list(self._mine.values())}
            await socket.send(msgspec.json.encode(put).decode())
        while not self._hello["ephemeral"] and not self._got.empty():
            self._got.get_nowait()  # not handed out yet: the broker sends them again, in order
        self._socket = socket
        self.connections += 1
        await self._send_acks()
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def _listen(self, socket: ClientConnection) -> None:
        while True:
            message = msgspec.json.decode(await socket.recv())
            if message["type"] == "deliveries":
                for row in message["deliveries"]:
                    self._got.put_nowait(msgspec.convert(row, Delivery))
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
            return NotAllowed("the broker refused the connection: a valid token is needed")
        return None

    def _lost(self, problem: BaseException) -> None:
        self._socket = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionClosed(None, None))

    def _end(self, problem: BrokerError) -> None:
        self._lost(problem)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(problem)
        else:
            self._got.put_nowait(problem)


class SyncClient:
    """`Client` for programs without an event loop: one thread with a loop does the work."""

    def __init__(self, *args: Any, **named: Any):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hitbox-client", daemon=True)
        self._thread.start()
        self._client = self._do(self._make(*args, **named))

    async def _make(self, *args: Any, **named: Any) -> Client:
        return Client(*args, **named)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._do(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        return self._do(self._client.request(method, path, body, **query))

    def publish(self, event: Mapping[str, Any], where: str | None = None) -> int:
        return self._do(self._client.publish(event, where))

    def publish_many(self, events: Sequence[Mapping[str, Any]]) -> int:
        return self._do(self._client.publish_many(events))

    def listen(
        self, name: str = "", subscriptions: Iterable[Mapping[str, Any]] = (), count: int | None = None, **options: Any
    ) -> Iterator[Delivery]:
        """Connect, subscribe, yield deliveries (`count` of them); each is acknowledged when the next is asked for."""
        subscriber = self._client.subscriber(name, **options)
        self._do(subscriber.__aenter__())
        try:
            for one in subscriptions:
                self._do(subscriber.subscribe(**one))
            deliveries = subscriber.__aiter__()
            for n in itertools.count(1):
                delivery = self._do(_next(deliveries))
                yield delivery
                if n == count:
                    self._do(subscriber.ack(delivery))
                    return
        finally:
            self._do(subscriber.__aexit__())


async def _next(deliveries: AsyncIterator[T]) -> T:
    return await anext(deliveries)


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, LONGEST_PAUSE)


def _error(found: Any, status: int) -> BrokerError:
    error = found.get("error", {}) if isinstance(found, dict) else {}
    message = error.get("message") or f"the broker answered with status {status}"
    if status == 429 or error.get("type") == "Overloaded":
        return Overloaded(message, error.get("retry_after", 1.0))
    if status in (401, 403):
        return NotAllowed(message)
    return Refused(message, error.get("type", ""), status, error.get("position"))
