"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import IO, Any, TypeVar

from hitbox.client.delivery import Delivery
from hitbox.client.subscriber import StateCallback, Subscriber
from hitbox.client.sync_management import SyncManagement
from hitbox.client.wire import BadEventReport, Progress, no_progress
from hitbox.protocol.errors import BadRequest, StoreFailed

T = TypeVar("T")


class SyncClient(SyncManagement):
    """`Client` for programs without an event loop: it runs an event loop in a thread."""

    def __init__(self, make: Callable[[], Any]):
        """`make` makes the client that does the work, on the thread's event loop."""
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._loop.run_forever, name="hitbox-client", daemon=True)
        self.thread.start()
        try:
            self.asynchronous = self.do(_made(make))
        except BaseException:
            self._end()
            raise
        self._subscribers: weakref.WeakSet[SyncSubscriber] = weakref.WeakSet()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's event loop, and wait for its result."""
        if threading.current_thread() is self.thread:
            work.close()
            raise BadRequest("a callback of the client (on_state) cannot use the client: use another thread")
        if self._loop.is_closed():
            work.close()
            raise StoreFailed("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise StoreFailed("the client was closed during the call") from None
        except BaseException:
            future.cancel()  # after an interrupt nothing waits for it
            raise

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. Loops over deliveries end, also in other threads."""
        if self._loop.is_closed():
            return
        for subscriber in list(self._subscribers):
            subscriber.close()
        self.do(self.asynchronous.close())
        self._end()

    def _end(self) -> None:
        self.do(_end_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.thread.join()
        self._loop.close()

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        return self.do(self.asynchronous.request(method, path, body, **query))

    def download(self, method: str, path: str, file: IO[bytes], progress: Progress = no_progress) -> None:
        self.do(self.asynchronous.download(method, path, file, progress))

    def publish(
        self,
        event: Any,
        where: str | None = None,
        *,
        payload: Any = None,
        content_type: str | None = None,
        id: str | None = None,
        ttl_seconds: float | None = None,
        delay_seconds: float | None = None,
    ) -> int:
        more = {"payload": payload, "content_type": content_type, "id": id}
        times = {"ttl_seconds": ttl_seconds, "delay_seconds": delay_seconds}
        return int(self.do(self.asynchronous.publish(event, where, **more, **times)))

    def publish_many(
        self,
        events: Any,
        where: Sequence[str | None] | None = None,
        *,
        payloads: Sequence[Any] | None = None,
        content_types: Sequence[str | None] | None = None,
        ids: Sequence[str | None] | None = None,
        ttl_seconds: float | None = None,
        delay_seconds: float | None = None,
        on_error: str = "raise",
        report: BadEventReport | None = None,
    ) -> int:
        more: dict[str, Any] = {"payloads": payloads, "content_types": content_types, "ids": ids}
        times: dict[str, Any] = {"ttl_seconds": ttl_seconds, "delay_seconds": delay_seconds}
        bad: dict[str, Any] = {"on_error": on_error, "report": report}
        return int(self.do(self.asynchronous.publish_many(events, where, **more, **times, **bad)))

    def publish_cloudevents(self, *events: Mapping[str, Any]) -> int:
        return int(self.do(self.asynchronous.publish_cloudevents(*events)))

    def metrics(self) -> str:
        return str(self.do(self.asynchronous.metrics()))

    def health(self) -> dict[str, Any]:
        return dict(self.do(self.asynchronous.health()))

    def alive(self) -> bool:
        return bool(self.do(self.asynchronous.alive()))

    def live(self, where: str = "") -> Iterator[dict[str, Any]]:
        figures = self.asynchronous.live(where)
        try:
            while True:
                try:
                    yield self.do(anext(figures))
                except StopAsyncIteration:
                    return
        finally:
            if not self._loop.is_closed():
                with contextlib.suppress(RuntimeError):  # it is ending already, after an interrupt
                    self.do(figures.aclose())

    def backup(
        self,
        folder: str | os.PathLike[str],
        progress: Progress = no_progress,
    ) -> list[str]:
        return list(self.do(self.asynchronous.backup(folder, progress)))

    def subscriber(
        self,
        name: str = "",
        *,
        ephemeral: bool = False,
        auto: bool = True,
        window: int = 256,
        handler_seconds: float = 600.0,
        subscriptions: Iterable[Mapping[str, Any]] = (),
        cloudevents: bool = False,
        on_state: StateCallback | None = None,
        **options: Any,
    ) -> SyncSubscriber:
        """A subscriber, as `Client.subscriber` makes it; `with` connects it. `on_state` is called in the client's
        thread, which must not wait: it cannot use this client."""
        settings = {
            "ephemeral": ephemeral, "auto": auto, "window": window, "handler_seconds": handler_seconds,
            "subscriptions": list(subscriptions), "cloudevents": cloudevents, "on_state": on_state, **options,
        }  # fmt: skip
        subscriber = SyncSubscriber(self, name, settings, None)
        self._subscribers.add(subscriber)
        return subscriber

    def listen(
        self, name: str = "", subscriptions: Iterable[Mapping[str, Any]] = (), count: int | None = None, **options: Any
    ) -> SyncSubscriber:
        """Connect, subscribe, and iterate over `count` deliveries (None: forever). Each is acknowledged when the loop
        asks for the next one. With `auto=False` use `ack`, `nack` and `extend` of the returned object.

            with client.listen("ann", auto=False) as ann:
                for delivery in ann:
                    ann.ack(delivery)
        """
        subscriber = SyncSubscriber(self, name, {"subscriptions": list(subscriptions), **options}, count)
        self._subscribers.add(subscriber)
        return subscriber


class SyncSubscriber:
    """A subscriber for programs without an event loop. `with` connects it; without one, the first delivery or request
    does. It is disconnected at the end of its loop or of the `with`, or when another thread closes it."""

    def __init__(self, client: SyncClient, name: str, options: dict[str, Any], count: int | None):
        self._do, self._thread = client.do, client.thread
        self._subscriber: Subscriber = self._do(_made(lambda: client.asynchronous.subscriber(name, **options)))
        self._left = count
        self._last: Delivery | None = None
        self._connected = self._closed = False
        self._opening = asyncio.Lock()
        self._waiting: set[asyncio.Task[Any]] = set()  # calls that wait for a connection or a delivery

    def __enter__(self) -> SyncSubscriber:
        try:
            self._wait(self._open)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._connected and self._thread.is_alive() and self._thread is not threading.current_thread():
            self.close()

    def close(self) -> None:
        """Disconnect. A call that waits for a delivery ends, also in other threads."""
        if not self._closed:
            self._closed = True
            self._do(self._leave())

    async def _open(self) -> None:
        async with self._opening:
            if not self._connected:
                await self._subscriber.__aenter__()
                self._connected = True

    async def _leave(self) -> None:
        waiting = [task for task in self._waiting if not task.done()]  # in another thread, or interrupted
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
        if self._connected:
            self._connected = False
            await self._subscriber.__aexit__()

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of work that may wait for long; `close` ends the wait."""

        async def waiting() -> T:
            task = asyncio.current_task()
            assert task is not None
            self._waiting.add(task)
            try:
                return await work()
            finally:
                self._waiting.discard(task)

        if self._closed:
            raise StoreFailed("the subscriber is closed")
        return self._do(waiting())

    # ---- receiving

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        delivery: Delivery | None = None
        try:
            if not self._closed:
                delivery = self._wait(self._advance)
        except StoreFailed:
            if not self._closed:
                self.close()
                raise
        except BaseException:
            self.close()
            raise
        if delivery is None:
            self.close()
            raise StopIteration
        return delivery

    async def _advance(self) -> Delivery | None:
        """Acknowledge the last delivery and wait for the next one; None after `count` of them."""
        await self._open()
        if self._last is not None and self._subscriber.auto:
            await self._subscriber.finish(self._last)
        self._last = None
        if self._left == 0:
            return None
        self._last = await self._subscriber.next()
        if self._left is not None:
            self._left -= 1
        return self._last

    def next(self, timeout: float | None = None) -> Delivery:
        """The next delivery, which the program then acknowledges or refuses itself. Raises TimeoutError if none comes
        for `timeout` seconds; None: wait for as long as it takes."""

        async def work() -> Delivery:
            await self._open()
            return await self._subscriber.next(timeout)

        return self._wait(work)

    def run(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` for each delivery, in this thread, until another one closes the subscriber. An exception is
        logged, and the delivery is refused."""
        try:
            while True:
                delivery = self.next()
                try:
                    result = callback(delivery)
                except Exception:
                    self._subscriber.log_failure(delivery)
                    self.nack(delivery)
                    continue
                if inspect.iscoroutine(result):  # nothing of it has run
                    result.close()
                    self.nack(delivery)
                    raise BadRequest("the callback is asynchronous: use it with `hitbox.Client`, not with Client.sync")
                if self._subscriber.auto:
                    self._do(self._subscriber.finish(delivery))
        except StoreFailed:
            if not self._closed:
                raise

    def ack(self, *deliveries: Delivery | int) -> None:
        """Acknowledge deliveries."""
        self._do(self._subscriber.ack(*deliveries))

    def nack(self, *deliveries: Delivery | int) -> None:
        """Refuse deliveries: the broker sends them again later; after `max_tries` they become dead letters."""
        self._do(self._subscriber.nack(*deliveries))

    def extend(self, *deliveries: Delivery | int) -> None:
        """Ask for more time for deliveries."""
        self._do(self._subscriber.extend(*deliveries))

    # ---- requests

    def subscribe(
        self, name: str, where: str, *, priority: int = 4, about: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Add or replace a subscription; returns warnings."""

        async def work() -> list[str]:
            await self._open()
            return await self._subscriber.subscribe(name, where, priority=priority, about=about)

        return self._wait(work)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription."""

        async def work() -> None:
            await self._open()
            await self._subscriber.unsubscribe(name)

        self._wait(work)

    @property
    def name(self) -> str:
        """The name of the subscriber; an ephemeral one may have been given it by the broker."""
        return str(self._subscriber.name)

    @property
    def connections(self) -> int:
        """How often it has been connected."""
        return self._subscriber.connections

    @property
    def auto(self) -> bool:
        """Whether deliveries are acknowledged when the loop asks for the next one, or the callback returns."""
        return self._subscriber.auto

    @property
    def warnings(self) -> list[str]:
        """Warnings of the broker about the subscriptions."""
        return list(self._subscriber.warnings)


async def _made(make: Callable[[], T]) -> T:
    """What `make` returns, made on the event loop."""
    return make()


async def _end_others() -> None:
    """Cancel all other tasks of this loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
