"""Match accepted events and send the deliveries, one priority level after the other.

    serial       all levels are matched, then all are sent
    alternate    a level is matched and sent, then the next level is matched
    concurrent   a level is matched and handed to the connections, which send it while the next level is matched

Events that have queued up are processed as a batch: level 9 of all of them, then level 8 and so on, so that a
connection sends many deliveries in one frame.

A subscriber gets one delivery per event, which names all of its subscriptions that matched. If its subscriptions have
several priorities, the delivery has the highest of them, but cannot be sent before the lowest level is matched. Levels
stay in order, so lower levels wait too. If every subscriber uses one priority, nothing waits.

An event without matches is delivered, with level 0, to the subscribers with the option `unmatched`.

Matching runs on the event loop, because handing an event to a thread takes longer than matching it. Large events, whose
texts a LIKE has to search, are matched in a thread, and so are smaller ones if events of their size took long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hitbox.broker.clock import time
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.logs import without_message
from hitbox.broker.settings import Way
from hitbox.broker.subscriptions import Subscriber, SubscriptionRegistry
from hitbox.encoding.arrays import LEVELS

BATCH = 64
TURN_SECONDS = 0.005
ALTERNATE_SECONDS = 0.05
log = logging.getLogger("hitbox.broker")
LARGE = 4096
"""Events of at least this many bytes are matched in a thread."""
Row = tuple[int, int, int, str, int]


@dataclass(slots=True)
class AcceptedEvent:
    """An event that is in the store."""

    seq: int
    event: Mapping[str, Any]
    where: str | None
    body: bytes
    time: int
    accepted: int
    again: bool = False
    """It is matched after a restart, so it may have been delivered before."""
    slowest: float = 0.0
    """The longest time that matching one of its levels took, in seconds."""
    committed: int = 0
    """When it was in the store, in nanoseconds of the clock of `accepted`; 0: before a restart."""


@dataclass(slots=True)
class Level:
    """The deliveries of one level; `lowest`: the lowest priority of any subscription of their subscribers."""

    level: int
    lowest: int
    deliveries: list[tuple[Subscriber, Delivery]] = field(default_factory=list)


@dataclass(slots=True)
class Dispatcher:
    """Matches batches of events and offers the deliveries to the mailboxes."""

    registry: SubscriptionRegistry
    mailboxes: Mapping[int, Mailbox]
    way: Way
    failed: list[int] = field(default_factory=list)
    """Events of the last run that could not be matched completely."""
    large: int = LARGE
    match_seconds: float = 0.0
    """Time that matching took in the last run."""

    async def run(self, batch: list[AcceptedEvent]) -> tuple[list[Row], dict[int, int]]:
        """Match and send a batch; returns the rows to store, and the number of matches of each event."""
        rows: list[Row] = []
        self.failed = []
        self.match_seconds = 0.0
        made: dict[int, dict[Subscriber, Delivery]] = {a.seq: {} for a in batch}
        levels = self._levels(batch, made)
        send: Callable[[Level], Any] = self._send_and_wait if self.way == "alternate" else self._send
        if self.way == "serial":
            everything = [level async for level in levels]
            for level in everything:
                await send(level)
        else:
            waiting: deque[Level] = deque()
            async for level in levels:
                waiting.append(level)
                while waiting and waiting[0].lowest >= level.level:
                    await send(waiting.popleft())
            for level in waiting:
                await send(level)
        for found in made.values():
            rows += [
                (subscriber.number, d.level, d.seq, "\n".join(d.ids), int(d.sent or d.live))
                for subscriber, d in found.items()
                if not subscriber.ephemeral
            ]
        return rows, {seq: sum(len(d.ids) for d in found.values()) for seq, found in made.items()}

    async def _levels(
        self, batch: list[AcceptedEvent], made: dict[int, dict[Subscriber, Delivery]]
    ) -> AsyncIterator[Level]:
        """The levels of all events of the batch, in descending order; each is matched when the caller asks for it."""
        heads: list[tuple[AcceptedEvent, Iterator[tuple[int, list[str]]]]] = [(a, self._found(a)) for a in batch]
        next_of: dict[int, tuple[int, list[str]] | None] = {}
        turn = time.monotonic()
        while True:
            for a, levels in heads:
                if a.seq not in next_of:
                    next_of[a.seq] = await self._next(a, levels)
                    if time.monotonic() - turn > TURN_SECONDS:
                        await asyncio.sleep(0)
                        turn = time.monotonic()
            left = [found[0] for found in next_of.values() if found is not None]
            level = Level(max(left, default=0), LEVELS)
            for a, _ in heads:
                found = next_of[a.seq]
                if found is None and level.level == 0 and not made[a.seq] and a.seq not in self.failed:
                    self._collect(a, {one: [] for one in self.registry.takes_unmatched.values()}, level, made[a.seq])
                elif found is not None and found[0] == level.level:
                    self._collect(a, self.registry.by_subscriber(found[1]), level, made[a.seq])
                    del next_of[a.seq]
            if left or level.deliveries:
                yield level
            if not left:
                return

    def _found(self, a: AcceptedEvent) -> Iterator[tuple[int, list[str]]]:
        """The levels of one event. An error is logged and does not affect other events."""
        try:
            yield from self.registry.levels(a.event, a.where)
        except Exception as problem:
            text = "event %d could not be matched; it is kept and tried again at the next start"
            log.error(text, a.seq, exc_info=without_message(problem))
            self.failed.append(a.seq)

    async def _next(self, a: AcceptedEvent, levels: Iterator[tuple[int, list[str]]]) -> tuple[int, list[str]] | None:
        """The next level of an event, matched on the event loop or in a thread. Adjusts `large` to the time it took."""
        size, started = len(a.body), time.monotonic()
        threaded = size >= self.large
        found = await asyncio.to_thread(next, levels, None) if threaded else next(levels, None)
        took = time.monotonic() - started
        self.match_seconds += took
        a.slowest = max(a.slowest, took)
        if found is None and a.slowest > TURN_SECONDS:
            self.large = min(self.large, size)
        elif found is None and threaded and size < LARGE and a.slowest < TURN_SECONDS / 2:
            self.large = size + 1
        return found

    def _collect(
        self, a: AcceptedEvent, found: Mapping[Subscriber, list[str]], level: Level, made: dict[Subscriber, Delivery]
    ) -> None:
        now = time.perf_counter_ns()
        for subscriber, names in found.items():
            delivery = made.get(subscriber)
            if delivery is not None:
                delivery.ids += names
                continue
            delivery = made[subscriber] = Delivery(
                a.seq, level.level, names, a.time, a.body, a.again, 0, a.accepted, now, not a.again,
                committed=a.committed,
            )  # fmt: skip
            level.deliveries.append((subscriber, delivery))
            level.lowest = min(level.lowest, subscriber.lowest)

    async def _send(self, level: Level) -> list[Mailbox]:
        """Offer a level to the mailboxes and let the connections run."""
        touched = []
        for subscriber, delivery in level.deliveries:
            mailbox = self.mailboxes.get(subscriber.number)
            if mailbox is not None and mailbox.offer(delivery):
                touched.append(mailbox)
            else:
                delivery.live = False
        await asyncio.sleep(0)
        return touched

    async def _send_and_wait(self, level: Level) -> None:
        """The same, and wait until the connections have written it, but at most ALTERNATE_SECONDS."""
        busy = [asyncio.ensure_future(m.idle.wait()) for m in await self._send(level) if not m.idle.is_set()]
        if busy:
            _, stuck = await asyncio.wait(busy, timeout=ALTERNATE_SECONDS)
            for task in stuck:
                task.cancel()
