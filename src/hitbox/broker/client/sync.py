"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import IO, Any, TypeVar

from hitbox.broker.client.delivery import Delivery
from hitbox.broker.client.subscriber import Subscriber
from hitbox.broker.errors import StoreFailed

T = TypeVar("T")


class SyncClient:
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
        self.do(self.asynchronous.close())
        self._end()

    def _end(self) -> None:
        self.do(_end_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.thread.join()
        self._loop.close()

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        return self.do(self.asynchronous.request(method, path, body, **query))

    def download(
        self, method: str, path: str, file: IO[bytes], progress: Callable[[int, int], object] = lambda done, total: None
    ) -> None:
        self.do(self.asynchronous.download(method, path, file, progress))

    def publish(
        self, event: Any, where: str | None = None, *, payload: Any = None, content_type: str | None = None
    ) -> int:
        return int(self.do(self.asynchronous.publish(event, where, payload=payload, content_type=content_type)))

    def publish_many(
        self,
        events: Any,
        where: Sequence[str | None] | None = None,
        *,
        payloads: Sequence[Any] | None = None,
        content_types: Sequence[str | None] | None = None,
    ) -> int:
        more = {"payloads": payloads, "content_types": content_types}
        return int(self.do(self.asynchronous.publish_many(events, where, **more)))

    def publish_cloudevents(self, *events: Mapping[str, Any]) -> int:
        return int(self.do(self.asynchronous.publish_cloudevents(*events)))

    def whoami(self) -> dict[str, Any]:
        return self.do(self.asynchronous.whoami())

    def principals(self) -> list[dict[str, Any]]:
        return self.do(self.asynchronous.principals())

    def put_principal(
        self, name: str, roles: Iterable[str], *, names: str = "*", publish: str = "", see: str = ""
    ) -> None:
        self.do(self.asynchronous.put_principal(name, roles, names=names, publish=publish, see=see))

    def remove_principal(self, name: str) -> None:
        self.do(self.asynchronous.remove_principal(name))

    def tokens(self) -> list[dict[str, Any]]:
        return self.do(self.asynchronous.tokens())

    def create_token(
        self, principal: str, roles: Iterable[str] | None = None, expires: float | None = None, note: str = ""
    ) -> dict[str, Any]:
        return self.do(self.asynchronous.create_token(principal, roles, expires, note))

    def limit_token(self, id: str, roles: Iterable[str] | None = None, expires: float | None = None) -> dict[str, Any]:
        return self.do(self.asynchronous.limit_token(id, roles, expires))

    def revoke_token(self, id: str) -> None:
        self.do(self.asynchronous.revoke_token(id))

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
        self._do, self._thread = client.do, client.thread
        self._subscriber: Subscriber = self._do(_made(lambda: client.asynchronous.subscriber(name, **options)))
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
        self._last = await self._subscriber.next()
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
