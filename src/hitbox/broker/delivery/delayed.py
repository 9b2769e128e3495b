"""Delayed events: they wait in a table of their own, and become ordinary events when they are due.

    publish with delay_seconds --> table `delayed` -- when due --> table `events` --> matched and delivered

So a delayed event gets its number when it is due, meets the subscriptions that exist then, and its time to live begins
then. It is moved in one transaction: once, even if the broker is killed. Until it is due, it can be cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import msgspec

from hitbox.broker.access.directory import Directory
from hitbox.broker.access.usage import Charge, store_charges
from hitbox.broker.clock import clock, time
from hitbox.broker.delivery.change_barrier import ChangeBarrier
from hitbox.broker.delivery.waiting import Waiting
from hitbox.broker.events.message_ids import MessageIds
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Settings
from hitbox.broker.store.group_commit import Writer
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.subscriptions import contradiction
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.index.index import Index
from hitbox.protocol.errors import Overloaded

ROWS = 1_000
"""Events that are moved at once."""
PAUSE_SECONDS = 1.0
"""After a failure of the store, until the next attempt."""
NEVER = 2**62
Due = tuple[int, str, int]
"""Number, principal, and bytes."""
log = logging.getLogger("hitbox.broker")


@dataclass(slots=True)
class DelayedEvents:
    """Those that wait in the store. `queue_stored` takes the events that they become."""

    store: Store
    writer: Writer
    settings: Settings
    directory: Directory
    message_ids: MessageIds
    change_barrier: ChangeBarrier
    waiting: Waiting
    queue_stored: Callable[[int, Sequence[tuple[str, bytes]], int, int], None]
    _next: int = NEVER
    """When the first one is due that is known of; microseconds since 1970."""
    _not_before: float = 0.0
    _arriving: Counter[str] = field(default_factory=Counter)
    """How many of each principal are being stored."""
    _unchanged: bool = False
    """None are accepted for a moment."""
    _moving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read what an earlier run accepted."""
        after = 0
        while rows := self.store.delayed.from_number(after + 1, ROWS):
            self.message_ids.load_delayed((number, principal, body) for number, _, principal, body in rows)
            self._next = min(self._next, *(due for _, due, *_ in rows))
            after = rows[-1][0]

    async def stop(self) -> None:
        """Wait until those that are being moved are events."""
        if self._moving is not None:
            await asyncio.wait([self._moving])

    # ---- accepting and cancelling

    def check_accepts(self, count: int, principal: str) -> None:
        """Raise if no more delayed events are accepted at the moment."""
        if self._unchanged:
            raise Overloaded("the schema is being changed, and the event is not checked yet; try again", 1)
        most = self.settings.max_delayed
        waiting = self.store.delayed.table.rows() + self._arriving.total()
        if waiting + count > most:
            raise Overloaded(f"{waiting} delayed events wait already, and {most} are the most (max_delayed)", 60)
        most = self.settings.max_principal_delayed
        waiting = self.count_of(principal)
        if principal in self.directory.principals and waiting + count > most:
            raise Overloaded(
                f"{waiting} delayed events of {principal!r} wait already, and {most} are the most of one principal "
                "(max_principal_delayed)",
                60,
            )

    def count_of(self, principal: str) -> int:
        """How many a principal has, with those that are being stored."""
        return self.store.delayed.counts.committed.get(principal, 0) + self._arriving[principal]

    def accept(
        self, items: Sequence[PublishedEvent], bodies: Sequence[bytes], principal: str, charge: Charge | None
    ) -> asyncio.Future[int]:
        """Store events that are to be delivered later. The future has the number of the first among the delayed ones,
        once all are durable."""
        now = clock.now()
        delays = [int((item.delay_seconds or 0.0) * 1e6) for item in items]
        rows = [(now + delay, principal, body) for delay, body in zip(delays, bodies, strict=True)]
        self._arriving[principal] += len(rows)
        stored = self.writer.submit(partial(_add, self.store, rows, charge))
        stored.add_done_callback(partial(self._stored, len(rows), principal, now + min(delays)))
        return stored

    def _stored(self, count: int, principal: str, due: int, stored: asyncio.Future[int]) -> None:
        self._arriving[principal] -= count
        if not self._arriving[principal]:
            del self._arriving[principal]
        if not stored.cancelled() and stored.exception() is None:
            self._next = min(self._next, due)

    async def cancel(self, numbers: Sequence[int]) -> int:
        """Delete events that are not due yet; returns how many there were."""
        cancelled = self.writer.submit(partial(self.store.delayed.cancel, numbers), mandatory=True, frees_space=True)
        gone: list[tuple[str, bytes]] = await cancelled
        for principal, body in gone:
            self.message_ids.cancel(msgspec.json.decode(body, type=PublishedEvent), principal)
        return len(gone)

    # ---- a change of the schema

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """None are accepted meanwhile, and those that were are in the store."""
        self._unchanged = True
        try:
            await self.writer.submit(lambda: None)
            yield
        finally:
            self._unchanged = False

    def check_schema(self, schema: Schema) -> None:
        """Raise Conflict if one of them does not fit a schema; in a thread."""
        checker, after = Index(schema), 0
        bad: list[str] = []
        while rows := self.store.delayed.from_number(after + 1, ROWS):
            for number, _, _, body in rows:
                item = msgspec.json.decode(body, type=PublishedEvent)
                try:
                    checker.match(item.event, item.where)
                except HitboxError as problem:
                    bad.append(f"delayed event {number}: {problem}")
            after = rows[-1][0]
        if bad:
            raise contradiction(bad, "delayed event")

    # ---- moving those that are due

    def step(self) -> None:
        """Move what is due; called ten times per second. While the disk is full, they wait."""
        if self._moving is not None or self.writer.full or clock.in_doubt():
            return
        if clock.now() >= self._next and time.monotonic() >= self._not_before:
            self._moving = asyncio.create_task(self._move())
            self._moving.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._moving = None
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self._next = 0  # unknown
            self._not_before = time.monotonic() + PAUSE_SECONDS
            log.warning("delayed events could not be delivered, and are tried again: %s", problem)

    async def _move(self) -> None:
        now = clock.now()
        if self.waiting.too_many(1, 0):
            return
        due = self._admit(await asyncio.to_thread(self.store.delayed.due, now, ROWS, self.waiting.with_half()))
        numbers = [number for number, *_ in due]
        if due:
            await self.change_barrier.enter(len(due))
            moved = self.writer.submit(lambda: self.store.delayed.move(numbers, now))
            moved.add_done_callback(partial(self._moved, due, now, time.perf_counter_ns()))
            await moved
        self._next = NEVER  # what is stored from here on lowers it again
        first = await asyncio.to_thread(self.store.delayed.first_due)
        self._next = min(self._next, NEVER if first is None else first)

    def _admit(self, due: Sequence[Due]) -> list[Due]:
        """Those for which there is room, and which leave others their half; the first ones of each principal. One that
        waits alone may be larger."""
        waiting, admitted, late = self.waiting, list[Due](), set[str]()
        for row in due:
            _, principal, size = row
            if waiting.events and waiting.too_many(1, size):
                break
            if principal not in late and not waiting.more_than_half(principal, 1, size):
                waiting.add(1, size, principal)
                admitted.append(row)
            else:
                late.add(principal)
        return admitted

    def _moved(
        self, due: Sequence[Due], now: int, started: int, moved: asyncio.Future[tuple[int, list[tuple[str, bytes]]]]
    ) -> None:
        """Called when the store is done, in the order of its commits: events are matched in the order of their
        numbers."""
        first, found = 0, list[tuple[str, bytes]]()
        if not moved.cancelled() and moved.exception() is None:
            first, found = moved.result()
        self.change_barrier.leave(len(due) - len(found))  # the others were cancelled meanwhile, or could not be moved
        for _, principal, size in due:
            self.waiting.remove(1, size, principal)
        for principal, body in found:
            self.waiting.add(1, len(body), principal)
        if found:
            self.queue_stored(first, found, now, started)


def _add(store: Store, rows: Iterable[tuple[int, str, bytes]], charge: Charge | None) -> int:
    first = store.delayed.add(rows)
    store_charges(store, [] if charge is None else [charge])
    return first
