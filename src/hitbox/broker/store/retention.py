"""What goes because it is too old or too much: the oldest events of the log, and the oldest that is pending."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import NamedTuple

import apsw

from hitbox.broker.clock import clock
from hitbox.broker.store.deliveries import StoredDeliveries
from hitbox.broker.store.space import SMALL_BYTES, Space
from hitbox.broker.store.tables import LEVELS_TABLE, NEVER, Meta

ROW_BYTES = 64
"""Of a row of table `deliveries`, about, without the names."""
KEPT_ROWS = 5_000
KEPT_BYTES = 4 * 2**20
"""Pending deliveries, and bytes of their events, that one step of retention moves; more if a single event has more."""
STEP = 10_000_000
"""Microseconds; what is longer between two steps of retention is a jump of the clock, or the broker was down."""
_OLDEST_OF = (
    f"WITH {LEVELS_TABLE} SELECT min((SELECT min(seq) FROM deliveries WHERE subscriber = ? AND urgency = u)) FROM level"
)
_PENDING_IN = f"""
    WITH RECURSIVE owner(n) AS (
        SELECT min(subscriber) FROM deliveries
        UNION ALL SELECT (SELECT min(subscriber) FROM deliveries WHERE subscriber > n) FROM owner WHERE n IS NOT NULL
    ), {LEVELS_TABLE}
    SELECT d.* FROM owner CROSS JOIN level CROSS JOIN deliveries d
    WHERE n IS NOT NULL AND d.subscriber = n AND d.urgency = u AND d.seq BETWEEN ? AND ? LIMIT ?"""
"""The pending deliveries of events from one number to another. Jumps from subscriber to subscriber in key order: a few
steps per subscriber with pending deliveries, none for the others."""


class Trimmed(NamedTuple):
    """How many events retention removed from the log, and whether it should go on."""

    events: int
    more: bool


class Retention:
    def __init__(self, db: apsw.Connection, meta: Meta, space: Space, deliveries: StoredDeliveries):
        self.db, self.meta, self.space, self.deliveries, self.events = db, meta, space, deliveries, deliveries.events
        self._span = NEVER  # events that the latest step could look at

    def trim(self, before: int, most_bytes: int, most_in_all: int = NEVER, batch: int = 20_000) -> Trimmed:
        """Remove events older than `before` (microseconds), and the oldest ones while all events take more than
        `most_bytes`, or the database is larger than `most_in_all` or the disk allow. Whatever else is stored, such as
        dead letters and delayed events, takes nothing of `most_bytes`. What is still needed is kept elsewhere. At most
        `batch` events; fewer if many deliveries of them are pending."""
        self._follow_clock()
        first, used = 0, self.space.used_bytes()
        most_in_all = min(most_in_all, self.space.most_on_disk())
        excess, excess_in_all = self.events.totals.now("events") - most_bytes, used - most_in_all
        gone, count, limit, accepted = 0, 0, min(batch, 2 * self._span), self._acceptance()
        room = self.space.disk.space(self.space.folder)[1] // 2  # for the pages of these events in the log of SQLite
        query = "SELECT seq, time, length(body) FROM events WHERE seq <= ? ORDER BY seq LIMIT ?"
        for seq, when, size in self.db.execute(query, (self.meta.get("matched", 0), limit)):
            if (accepted(seq, when) >= before and excess <= 0 and excess_in_all <= 0) or (count and room < 0):
                self._note_future(seq, when)
                break
            first, gone, count = first or seq, seq, count + 1
            excess -= self.events.size_of(size)
            excess_in_all, room = excess_in_all - size - 32, room - size - 32
        if not count:
            return Trimmed(0, False)
        through, removed = self.remove_through(first, gone)
        self._span = max(removed, 1)
        self.events.totals.more["trimmed"] += removed
        return Trimmed(removed, removed > 0 and (count == limit or through < gone or room < 0))

    def _note_future(self, seq: int, when: int) -> None:
        """If the time of the oldest event is in the future, remember that all there are were accepted before now."""
        if when > clock.now() and seq > self.meta.get("ahead", (0, 0, 0))[0]:
            self.meta.put("ahead", (self.events.table.next() - 1, clock.now(), clock.now()))

    def _follow_clock(self) -> None:
        """Of what has a time in the future, only time that passes counts, not what the clock jumps meanwhile."""
        (last, seen, then), now = self.meta.get("ahead", (0, 0, 0)), clock.now()
        if last >= self.events.table.first():
            self.meta.put("ahead", (last, seen if 0 <= now - then <= STEP else max(seen + now - then, 0), now))

    def _acceptance(self) -> Callable[[int, int], int]:
        """A function of the number and the time of an event: when it was accepted. A time in the future is of a clock
        that was wrong. Then it is when retention came upon it; until that, now."""
        (last, seen, _), now = self.meta.get("ahead", (0, 0, 0)), clock.now()
        return lambda seq, when: when if when <= now else min(seen, now) if seq <= last else now

    def remove_through(self, first: int, last: int) -> tuple[int, int]:
        """Remove the events from `first` to `last`, or fewer if too many deliveries of them are pending; what is still
        needed is kept. Returns up to which number, and how many. Without room, it takes no more than it frees."""
        full, most = self.space.reserve.missing() > 0, min(KEPT_BYTES, max(self.space.reserve.bytes // 4, SMALL_BYTES))
        recent = [row for row in self.deliveries.recent.all() if row[2] <= last]
        failed = [seq for seq in self.meta.get("failed", []) if seq <= last]
        while True:
            settled = list(self.db.execute(_PENDING_IN, (first, last, KEPT_ROWS + 1)))
            needed = {row[2] for row in [*settled, *recent]}.union(failed)
            if first == last:
                settled = list(self.db.execute(_PENDING_IN, (first, last, -1)))
                break
            sizes = self.events.of(sorted(needed), "length(body)").values()
            if len(settled) + len(recent) <= KEPT_ROWS and sum(int(size) for _, size in sizes) <= most:
                break
            last = first + (last - first) // 2
            recent = [row for row in recent if row[2] <= last]
            failed = [seq for seq in failed if seq <= last]
        events = [(seq, *event) for seq, event in self.events.of(sorted(needed)).items()]
        if full and recent:  # they are shorter in the log
            ((size,),) = self.db.execute("SELECT sum(length(body)) FROM events WHERE seq <= ?", (last,))
            if size - sum(len(body) for *_, body in events) < sum(len(row[3]) + ROW_BYTES for row in recent):
                last, events, recent, settled = min(needed) - 1, [], [], []
        self.events.totals.more["events"] -= self.events.bytes_through(last)
        removed = self.events.table.delete_through(last)  # first: on a full disk what follows needs the space
        self.events.keep(events)
        self.deliveries.recent.remove((row[0], row[1], row[2]) for row in recent)
        self.deliveries.table.delete_read(settled)
        self.deliveries.insert_recent(recent, kept=1)
        self.deliveries.table.insert([(*row[:6], 1) for row in settled])
        return last, removed

    def count_beyond(self, subscriber: int, most_bytes: int, most: int) -> int:
        """How many of the oldest pending deliveries, `most` at most, must go so that only so many bytes are left."""
        over = self.deliveries.bytes.now(subscriber) - most_bytes
        keys = self.deliveries.oldest(subscriber, most) if over > 0 else []
        sizes = self.events.of(sorted({seq for _, seq in keys}), "length(body)")
        for count, (_, seq) in enumerate(keys):
            if over <= 0:
                return count
            over -= int(sizes[seq][1]) if seq in sizes else 0
        return len(keys)

    def count_older(self, subscriber: int, before: int, most: int) -> int:
        """How many of the oldest pending deliveries, `most` at most, are of events before a time."""
        seqs = [seq for _, seq in self.deliveries.oldest(subscriber, most)]
        events, accepted = self.events.of(sorted(set(seqs)), "NULL"), self._acceptance()
        times = [accepted(seq, events[seq][0]) for seq in seqs if seq in events]
        return sum(1 for _ in takewhile(lambda when: when < before, times))

    def oldest_pending(self, subscribers: Iterable[int]) -> dict[int, tuple[int, int]]:
        """(number, time) of the oldest event that is pending for each of the subscribers, in this transaction."""
        oldest: dict[int, int] = {}
        for number in subscribers:
            ((settled,),) = self.db.execute(_OLDEST_OF, (number,))
            seqs = [row[2] for row in self.deliveries.recent.of(number)]
            if settled is not None or seqs:
                oldest[number] = min(seqs if settled is None else [settled, *seqs])
        events, accepted = self.events.of(sorted(set(oldest.values())), "NULL"), self._acceptance()
        return {number: (seq, accepted(seq, events[seq][0])) for number, seq in oldest.items() if seq in events}
