"""Match and send: accepted events in, deliveries out, one level of priority after the other.

    serial       all levels are determined, then sent
    alternate    a level is determined, then sent until it is on its way, then the next one is determined
    concurrent   a level is determined and handed to the connections, which send while the next one is determined

Events that queued up meanwhile go through together: the level 9 of all of them, then the level 8 and so on, so that a
connection gets one frame for many.

A subscriber gets one delivery an event, naming all of its subscriptions that matched. One with subscriptions of several
priorities is served with its most urgent one, which therefore waits until its least urgent one is determined; levels
stay in order, so the levels behind wait too. Where every subscriber keeps to one priority nobody waits.

An event that nobody wants goes, with level 0, to the subscribers that asked for such.

Matching runs on the event loop itself: handing it to a thread costs more than it takes. Large events are the exception,
as a LIKE has to look through their texts: they are matched in a thread, and so is everything of a size that took long.
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
from hitbox.broker.settings import Way
from hitbox.broker.subscriptions import Subscriber, SubscriptionRegistry
from hitbox.encoding.arrays import LEVELS

BATCH = 64
TURN_SECONDS = 0.005
ALTERNATE_SECONDS = 0.05
log = logging.getLogger("hitbox.broker")
LARGE = 4096
"""Bytes of an event from which it is matched in a thread."""
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
    """After a crash: it may have been delivered before."""
    slowest: float = 0.0
    """Seconds that finding one of its levels took."""


@dataclass(slots=True)
class Level:
    """The deliveries of one level; `lowest` is the least urgent priority that anyone among them subscribes with."""

    level: int
    lowest: int
    deliveries: list[tuple[Subscriber, Delivery]] = field(default_factory=list)


@dataclass(slots=True)
class Dispatcher:
    registry: SubscriptionRegistry
    mailboxes: Mapping[int, Mailbox]
    way: Way
    failed: list[int] = field(default_factory=list)
    """Events of the last run that could not be matched, or not at every level."""
    large: int = LARGE

    async def run(self, batch: list[AcceptedEvent]) -> tuple[list[Row], dict[int, int]]:
        """Send a batch; the rows to record, and how many subscriptions each event matched."""
        rows: list[Row] = []
        self.failed = []
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
        """Level by level over all events of the batch, each determined when it is asked for."""
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
        """An event that cannot be matched harms no other."""
        try:
            yield from self.registry.levels(a.event, a.where)
        except Exception:
            log.exception("event %d could not be matched; it is kept, and tried again at the next start", a.seq)
            self.failed.append(a.seq)

    async def _next(self, a: AcceptedEvent, levels: Iterator[tuple[int, list[str]]]) -> tuple[int, list[str]] | None:
        """The next level of an event, found on the loop or in a thread; how that went decides for the others."""
        size, started = len(a.body), time.monotonic()
        threaded = size >= self.large
        found = await asyncio.to_thread(next, levels, None) if threaded else next(levels, None)
        a.slowest = max(a.slowest, time.monotonic() - started)
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
                a.seq, level.level, names, a.time, a.body, a.again, 0, a.accepted, now, not a.again
            )
            level.deliveries.append((subscriber, delivery))
            level.lowest = min(level.lowest, subscriber.lowest)

    async def _send(self, level: Level) -> list[Mailbox]:
        """Hand a level over and let the connections run."""
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
        """The same, and wait for the connections to have written it; one that is stuck is not waited for."""
        busy = [asyncio.ensure_future(m.idle.wait()) for m in await self._send(level) if not m.idle.is_set()]
        if busy:
            _, stuck = await asyncio.wait(busy, timeout=ALTERNATE_SECONDS)
            for task in stuck:
                task.cancel()
