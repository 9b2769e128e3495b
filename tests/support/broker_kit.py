"""A broker in the test's own process, and a subscriber that writes down what it gets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from hitbox import Schema
from hitbox.broker.access.principals import EVERYTHING, Token, TokenSettings, hash_of
from hitbox.broker.broker import Broker
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.http.app import serve
from hitbox.broker.http.auth import AccessControl
from hitbox.broker.http.tls import Tls
from hitbox.broker.settings import Options, Settings
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.protocol.errors import StoreFull

SCHEMA = Schema({"price": "float", "qty": "int", "city": "string"})


@asynccontextmanager
async def running(path: Path, schema: Schema | None = SCHEMA, **settings: Any) -> AsyncIterator[Broker]:
    broker = Broker(path, schema, Settings(**settings))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class Listener:
    """Stands where a WebSocket would."""

    def __init__(self, broker: Broker, auto: bool = True, slow: asyncio.Event | None = None):
        self.broker, self.auto, self.slow = broker, auto, slow
        self.got: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None

    async def attach(self, name: str, window: int = 100, options: Options | None = None) -> Listener:
        self.mailbox = await self.broker.attach(name, self, window, options)
        self.task = asyncio.create_task(self.run())
        return self

    async def attach_ephemeral(self, name: str, options: Options) -> Listener:
        self.mailbox = self.broker.attach_ephemeral(name, self, options)
        self.task = asyncio.create_task(self.run())
        return self

    async def run(self) -> None:
        while found := await self.broker.tracker.next(self.mailbox, self):
            if self.slow is not None:
                await self.slow.wait()
            self.broker.tracker.sent(self.mailbox, found)
            self.got += [msgspec.json.decode(d.encode()) for d in found]
            if self.auto:
                self.broker.tracker.acknowledge(self.mailbox, [d.seq for d in found])

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    def send_now(self, mailbox: Mailbox) -> bool:
        return False

    async def leave(self) -> None:
        await self.broker.detach(self.mailbox, self)
        await asyncio.wait_for(self.task, 5)

    def seqs(self) -> list[int]:
        return [d["seq"] for d in self.got]


async def until(condition: Callable[[], object], seconds: float = 40) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def publish_until_full(broker: Broker) -> int:
    """Publish until it is refused for good, not only until the log is emptied; the last event that was accepted."""
    last = 0
    while True:
        try:
            last = await broker.publish([item(qty=1, city="x" * 2000)] * 10) + 9
        except StoreFull:
            await asyncio.sleep(0.5)
            if broker.writer.full:
                return last


@asynccontextmanager
async def held_up(broker: Broker) -> AsyncIterator[None]:
    """The store does not get to anything that is asked of it meanwhile."""
    gate, reached = threading.Event(), threading.Event()
    broker.writer.submit(lambda: (reached.set(), gate.wait()))
    await asyncio.to_thread(reached.wait)
    try:
        yield
    finally:
        gate.set()


def item(where: str | None = None, **event: Any) -> PublishedEvent:
    return PublishedEvent(event, where)


def sub(name: str, where: str, priority: int = 4, **about: Any) -> Subscription:
    return Subscription(name, where, priority, about)


def token_of(principal: str) -> str:
    """The text of its token."""
    return f"hb_{hash_of(principal)[:16]}_{'x' * 43}"


@asynccontextmanager
async def serving(
    path: Path,
    schema: Schema | None = SCHEMA,
    principals: Sequence[str] = (),
    tls: Tls | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Broker, str]]:
    """A broker on a port of its own, and its address. `principals` may do everything, with `token_of` them."""
    broker = Broker(path, schema, Settings(**settings))
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    access = AccessControl(True)
    for name in principals:
        id = token_of(name)[3:19]
        broker.directory.principals[name] = EVERYTHING
        broker.directory.tokens[id] = Token(id, name, hash_of(token_of(name)), TokenSettings())
        broker.directory.protected = True
    stop = asyncio.Event()
    task = asyncio.create_task(serve(broker, access, "127.0.0.1", 0, bound.set_result, stop, tls))
    await asyncio.wait([task, bound], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield broker, f"{'http' if tls is None else 'https'}://127.0.0.1:{await bound}"
    finally:
        stop.set()
        await task
