"""Match accepted events and send the deliveries, one priority level after the other.

All events that have queued up are matched as one group, in one call. The result is then split by priority:

    serial       all levels are determined, then all are sent
    alternate    a level is determined and sent, then the next level is determined
    concurrent   a level is determined and handed to the connections, which send it while the next is determined

Level 9 of all events of the group comes first, then level 8 and so on, so that a connection sends many deliveries in
one frame. An event that comes alone is a group of one: it waits for nobody.

A subscriber gets one delivery per event, which names all of its subscriptions that matched. If its subscriptions have
several priorities, the delivery has the highest of them, but cannot be sent before the lowest level is determined.
Levels stay in order, so lower levels wait too. If every subscriber uses one priority, nothing waits.

An event is delivered, with level 0, to the subscribers with the option `unmatched` if it has no matches that their
owners may know of.

Matching runs on the event loop, because handing a group to a thread takes longer than matching it. If a group takes
long, fewer events are matched together. Large events, whose texts a LIKE has to search, are matched in a thread, and so
are smaller ones if a single event of their size took long. Until that is known, a bound holds: a group that takes more
than LOOP_STEPS, or has so many matches that to list them takes as long, is given up on the event loop, and matched from
the beginning in the thread. Where there are so many subscriptions that only to find them would take too long, the
thread has it from the start.

Where each event has very many matches, a run ends early, so that these are not all in memory, and others get a turn
while they are named.

A subscription that takes too many steps on an event does not get it (suspensions.py); all others do.

If a group cannot be matched, its halves are tried, so an event that fails does not affect the others. Of that event the
levels above the failure are delivered.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hitbox.broker.clock import time
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.logs import without_message
from hitbox.broker.settings import Way
from hitbox.broker.stats import Matches
from hitbox.broker.subscribers.subscriptions import Sight, Subscriber, SubscriptionRegistry
from hitbox.broker.subscribers.suspensions import Failure, MatchCosts
from hitbox.encoding.arrays import LEVELS
from hitbox.index.match_budget import UsedUp

BATCH = 256
"""Events that are matched together, at most."""
MOST_MATCHES = 50_000
"""After so many matches a run ends, and the events that are left wait for the next one."""
MOST_IN_CALL = 250_000
"""Events and subscriptions that one call on the event loop may find together, at the worst. More are matched in the
thread, where a call may find MOST_IN_THREAD, or has SURE_TOGETHER events."""
MOST_IN_THREAD = 4_000_000
SURE_TOGETHER = 16
COLLECTED = 5_000
"""Matches after which others may get a turn."""
TURN_SECONDS = 0.005
LOOP_STEPS = 5_000
"""The most that a call on the event loop may take; as many as TURN_SECONDS has, about."""
ALTERNATE_SECONDS = 0.05
log = logging.getLogger("hitbox.broker")
LARGE = 4096
"""Events of at least this many bytes are matched in a thread."""
Row = tuple[int, int, int, str, int]


class AcceptedEvent(msgspec.Struct, eq=False):
    """An event that is in the store."""

    seq: int
    event: Mapping[str, Any]
    where: str | None
    body: bytes
    time: int
    accepted: int
    again: bool = False
    """It is matched after a restart, so it may have been delivered before."""
    committed: int = 0
    """When it was in the store, in nanoseconds of the clock of `accepted`; 0: before a restart."""
    expires: int = 0
    """When its time to live ends, in microseconds since 1970; 0: it has none."""
    principal: str = ""
    """Who published it, and so has it wait."""


@dataclass(slots=True)
class Level:
    """The deliveries of one level, those of a subscriber in the order of their events; `lowest`: the lowest priority of
    any subscription of their subscribers."""

    level: int
    lowest: int
    deliveries: dict[Subscriber, list[Delivery]] = field(default_factory=dict)


@dataclass(slots=True)
class Dispatcher:
    """Matches batches of events and offers the deliveries to the mailboxes."""

    registry: SubscriptionRegistry
    mailboxes: Mapping[int, Mailbox]
    way: Way
    failed: list[int] = field(default_factory=list)
    """Events of the last run that could not be matched completely."""
    expensive: list[Failure] = field(default_factory=list)
    """Subscriptions that ran out of steps in the last run."""
    large: int = LARGE
    together: int = BATCH
    """How many events are matched in one call; fewer if a call takes long."""
    match_seconds: float = 0.0
    """Time that matching took in the last run."""
    _turn_ends: float = 0.0
    _sights: Mapping[str, Sight] = field(default_factory=dict)
    """Of the principals when the run began: the deliveries are checked, as long as there are no others."""
    _steps: int = 0
    """Of the latest call."""

    async def run(self, batch: list[AcceptedEvent]) -> tuple[list[Row], dict[int, Matches]]:
        """Match and send the events of a batch, from the first on; returns the rows to store, and whom each event
        matched. If there are very many matches, the last events of the batch are left for the next run."""
        rows: list[Row] = []
        self.failed, self.expensive = [], []
        self.match_seconds = 0.0
        self._turn_ends = time.monotonic() + TURN_SECONDS
        self._sights = self.registry.visibility.sights
        matched = await self._match(batch)
        made: dict[int, dict[Subscriber, Delivery]] = {a.seq: {} for a in batch[: len(matched)]}
        levels = self._levels(list(zip(batch, matched, strict=False)), made)
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
        matches: dict[int, Matches] = {}
        for seq, found in made.items():
            numbers = array("Q", [subscriber.number for subscriber in found])
            matches[seq] = Matches(numbers, array("Q", [len(d.ids) for d in found.values()]))
            for subscriber, d in found.items():
                parts = []
                for at in range(0, max(len(d.ids), 1), COLLECTED):
                    parts.append("\n".join(d.ids[at : at + COLLECTED]))
                    await self._give_turn_in_time()
                if not subscriber.ephemeral:
                    rows.append((subscriber.number, d.level, seq, "\n".join(parts), 1 if d.sent or d.live else 0))
        return rows, matches

    async def _levels(
        self, matched: list[tuple[AcceptedEvent, dict[int, list[str]]]], made: dict[int, dict[Subscriber, Delivery]]
    ) -> AsyncIterator[Level]:
        """The levels of all these events, in descending order; each is determined when it is asked for."""
        wanted: list[list[tuple[AcceptedEvent, list[str]]]] = [[] for _ in range(LEVELS)]
        for a, levels in matched:
            for priority, ids in levels.items():
                wanted[priority].append((a, ids))
            if 0 not in levels:  # whether nobody wants it is known at level 0
                wanted[0].append((a, []))
        for number in range(LEVELS - 1, -1, -1):
            level, now = Level(number, LEVELS), time.perf_counter_ns()
            for a, ids in wanted[number]:
                mine = made[a.seq]
                for at in range(0, len(ids), COLLECTED):
                    self._collect(a, ids[at : at + COLLECTED], level, mine, now)
                    await self._give_turn_in_time()
                if number == 0 and self.registry.takes_unmatched and a.seq not in self.failed:
                    try:
                        takers = self.registry.takers_of_unmatched(a.event, mine, self.registry.costs(LOOP_STEPS))
                    except UsedUp:
                        takers = await self.registry.in_thread(self.registry.takers_of_unmatched, a.event, mine)
                    for one in takers:
                        self._add(a, one, [], level, mine, now)
                    await self._give_turn_in_time()
            if level.deliveries:
                yield level

    async def _match(self, batch: list[AcceptedEvent]) -> list[dict[int, list[str]]]:
        """{priority: ids} of each event, in as few calls as the event loop can afford; of the first events only, if
        these have very many matches."""
        found: list[dict[int, list[str]]] = []
        matches, subscriptions = 0, max(self.registry.count(), 1)
        while len(found) < len(batch) and matches < MOST_MATCHES:
            part = batch[len(found) : len(found) + self.together]
            size, started = max(len(a.body) for a in part), time.monotonic()
            few = len(part) * subscriptions <= MOST_IN_CALL
            matched = self._match_on_loop(part) if few and size < self.large else None
            if matched is None:
                self._steps = 0
                together = max(MOST_IN_THREAD // subscriptions, SURE_TOGETHER)
                matched = await self.registry.in_thread(self._match_in_thread, part, together, MOST_MATCHES - matches)
            found += matched
            matches += _count(matched)
            took = time.monotonic() - started
            self.match_seconds += took
            self._adapt(len(matched), size, max(took, self._steps * TURN_SECONDS / LOOP_STEPS))
            if len(found) < len(batch):
                await asyncio.sleep(0)
        return found

    def _adapt(self, count: int, size: int, seconds: float) -> None:
        """Choose how many events are matched together, and which are large, by the time that a call took, or its steps
        should take."""
        if seconds > TURN_SECONDS:
            if count > 1:
                self.together = count // 2
            else:
                self.large = min(self.large, size)
        elif seconds < TURN_SECONDS / 2:
            if count == self.together:
                self.together = min(2 * count, BATCH)
            if self.large <= size < LARGE:
                self.large = size + 1

    def _match_on_loop(self, group: list[AcceptedEvent]) -> list[dict[int, list[str]]] | None:
        """{priority: ids} of each event; None if that takes too long for the loop, and then nothing has happened."""
        failed, expensive, self._steps = len(self.failed), len(self.expensive), 0
        try:
            return self._match_group(group, LOOP_STEPS)
        except UsedUp:
            del self.failed[failed:], self.expensive[expensive:]
            return None

    def _match_in_thread(self, part: list[AcceptedEvent], together: int, most: int) -> list[dict[int, list[str]]]:
        """{priority: ids} of each event; of the first ones only, if these have `most` matches or more."""
        found: list[dict[int, list[str]]] = []
        while len(found) < len(part) and _count(found) < most:
            found += self._match_group(part[len(found) : len(found) + together])
        return found

    def _match_group(self, group: list[AcceptedEvent], most: int | None = None) -> list[dict[int, list[str]]]:
        """{priority: ids} of each event. An event that cannot be matched does not affect the others. `most`: UsedUp is
        raised if it takes more steps."""
        costs = self._costs(most)
        try:
            found = self.registry.match([a.event for a in group], [a.where for a in group], costs)
            self._note(group, costs)
            return found
        except UsedUp:
            raise
        except Exception:
            self._steps += costs.spent
            if len(group) == 1:
                return [self._match_alone(group[0], most)]
        half = len(group) // 2
        return self._match_group(group[:half], most) + self._match_group(group[half:], most)

    def _costs(self, most: int | None) -> MatchCosts:
        return self.registry.costs(None if most is None else max(most - self._steps, 1))

    def _match_alone(self, a: AcceptedEvent, most: int | None) -> dict[int, list[str]]:
        """The levels of an event that come before the one that cannot be matched."""
        found: dict[int, list[str]] = {}
        costs = self._costs(most)
        try:
            found.update(self.registry.levels(a.event, a.where, costs))  # keeps what comes before an error
            self._note([a], costs)
        except UsedUp:
            raise
        except Exception as problem:
            text = "event %d could not be matched; it is kept and tried again at the next start"
            log.error(text, a.seq, exc_info=without_message(problem))
            self.failed.append(a.seq)
            self._steps += costs.spent
        return found

    def _note(self, group: list[AcceptedEvent], costs: MatchCosts) -> None:
        """Which subscriptions ran out of steps. Those that what an event asks may have cost so much are not blamed."""
        self._steps += costs.spent
        blamed = {(id, event) for id, event in costs.blamed() if group[event or 0].where is None}
        for id, event in dict.fromkeys([*costs.ran_out, *sorted(blamed, key=str)]):
            self.expensive.append(Failure(id, group[event or 0].seq, (id, event) in blamed))

    def _collect(
        self, a: AcceptedEvent, ids: list[str], level: Level, made: dict[Subscriber, Delivery], now: int
    ) -> None:
        """Name the subscriptions that matched at this level in the deliveries of their subscribers."""
        by_name = self.registry.by_name
        for id in ids:
            owner, _, name = id.partition("/")
            subscriber = by_name.get(owner)
            if subscriber is None:
                continue
            delivery = made.get(subscriber)
            if delivery is None:
                self._add(a, subscriber, [name], level, made, now)
            else:
                delivery.ids.append(name)

    def _add(
        self,
        a: AcceptedEvent,
        subscriber: Subscriber,
        names: list[str],
        level: Level,
        made: dict[Subscriber, Delivery],
        now: int,
    ) -> None:
        sights = self._sights if self._sights is self.registry.visibility.sights else {}
        delivery = made[subscriber] = Delivery(
            a.seq, level.level, names, a.time, a.body, a.again, 0, a.accepted, now, not a.again, a.committed,
            expires=a.expires, sight=sights.get(subscriber.owner),
        )  # fmt: skip
        mine = level.deliveries.get(subscriber)
        if mine is None:
            level.deliveries[subscriber] = [delivery]
            level.lowest = min(level.lowest, subscriber.lowest)
        else:
            mine.append(delivery)

    async def _send(self, level: Level) -> list[Mailbox]:
        """Offer a level to the mailboxes, and let the connections run that could not send it at once; returns their
        mailboxes. Everybody else gets a turn after TURN_SECONDS."""
        busy = []
        for subscriber, deliveries in level.deliveries.items():
            mailbox = self.mailboxes.get(subscriber.number)
            taken = 0 if mailbox is None else mailbox.offer(deliveries)
            if mailbox is not None and taken and mailbox.ready:
                busy.append(mailbox)
            for delivery in deliveries[taken:]:
                delivery.live = False
            await self._give_turn_in_time()
        if busy:
            await self._give_turn()
        return busy

    async def _give_turn_in_time(self) -> None:
        if time.monotonic() > self._turn_ends:
            await self._give_turn()

    async def _give_turn(self) -> None:
        await asyncio.sleep(0)
        self._turn_ends = time.monotonic() + TURN_SECONDS

    async def _send_and_wait(self, level: Level) -> None:
        """Offer a level, and wait until the connections have written it, but at most ALTERNATE_SECONDS."""
        busy = [asyncio.ensure_future(m.idle.wait()) for m in await self._send(level) if not m.idle.is_set()]
        if busy:
            _, stuck = await asyncio.wait(busy, timeout=ALTERNATE_SECONDS)
            for task in stuck:
                task.cancel()


def _count(matched: list[dict[int, list[str]]]) -> int:
    return sum(len(ids) for levels in matched for ids in levels.values())
