"""Pending deliveries: in the log as long as they are recent, then rows of a table. Those that fail for good become dead
letters."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import apsw
import msgspec

from hitbox.broker.clock import clock
from hitbox.broker.events.published_event import TTL_BYTES, expires_at
from hitbox.broker.store.checked_table import CheckedTable, Row
from hitbox.broker.store.dead_letters import DeadLetters
from hitbox.broker.store.events import StoredEvents
from hitbox.broker.store.recent import SETTLE_ROWS, RecentDeliveries, RecentDelivery, row_of
from hitbox.broker.store.subscribers import StoredSubscribers
from hitbox.broker.store.tables import BODY_OF, HAS_EVENT, NEVER, TIME_OF, TOP, WITH_EVENTS, Meta, StoredDelivery
from hitbox.broker.store.tally import Tally
from hitbox.encoding.arrays import LEVELS


class StoredDeliveries:
    """`bytes` of the events and names of each subscriber's pending deliveries."""

    def __init__(
        self, db: apsw.Connection, table: CheckedTable, recent: RecentDeliveries, meta: Meta, events: StoredEvents,
        subscribers: StoredSubscribers, letters: DeadLetters,
    ):  # fmt: skip
        self.db, self.table, self.recent, self.meta, self.events = db, table, recent, meta, events
        self.subscribers, self.letters = subscribers, letters
        self.bytes = Tally[int]()
        self._settled_expiry: int | None = None  # when the first expires that was settled during a search; see expired
        self._committed_expiry: int | None = None  # the same at the last commit, for a rollback

    def load(self) -> None:
        """Count the bytes, at a start."""
        query = f"""SELECT d.subscriber, sum(length(d.ids) + length({BODY_OF})) FROM {WITH_EVENTS}
                    WHERE {HAS_EVENT} GROUP BY d.subscriber"""
        total = Counter(dict(self.db.execute(query)))
        total.update(self.bytes_of(list(map(row_of, self.recent.all()))))
        self.bytes.load(total)

    def committed(self) -> None:
        self.recent.committed()
        self._committed_expiry = self._settled_expiry

    def rolled_back(self) -> None:
        self.recent.rollback()
        self._settled_expiry = self._committed_expiry

    def forget(self, subscriber: int) -> None:
        """Remove the pending deliveries of a subscriber."""
        self.recent.forget(subscriber)
        self.bytes.more[subscriber] = -self.bytes.committed.get(subscriber, 0)
        unneeded = {row[2] for row in self.table.scan("subscriber = ? AND kept = 1", (subscriber,))}
        self.table.delete_where("subscriber = ?", (subscriber,))
        self.events.drop_unneeded(unneeded)

    def record(self, rows: Sequence[tuple[int, int, int, str, int]], matched: int, failed: Sequence[int] = ()) -> None:
        """Store the deliveries (subscriber, level, seq, ids, sent) of the events up to `matched`. `failed` lists events
        that could not be matched completely."""
        wanted = {row[0] for row in rows}
        known = self.subscribers.existing(wanted)  # while the disk was full, one may have been removed
        fresh = [row for row in rows if row[0] in known] if known != wanted else list(rows)
        self.recent.record(fresh)
        self.bytes.more.update(self.bytes_of(fresh))
        if self.recent.crowded():
            self.settle(max(len(rows), SETTLE_ROWS))
        self.meta.put("matched", matched)
        if failed:
            self.meta.put("failed", [*self.meta.get("failed", []), *failed])

    def record_failed(self, rows: Sequence[tuple[int, int, int, str, int]], failed: Sequence[int]) -> dict[int, int]:
        """After another attempt at the failed events: store the deliveries that are not pending already, and which
        events still fail. Returns how many deliveries each subscriber got."""
        before, first = self.meta.get("failed", []), self.events.table.first()
        fresh = [
            (subscriber, TOP - level, seq, ids, sent, 0, int(seq < first))
            for subscriber, level, seq, ids, sent in rows
            if self.subscribers.existing([subscriber]) and not self.pending_levels(subscriber, [seq])
        ]
        self.add(fresh)
        self.meta.put("failed", list(failed))
        self.events.drop_unneeded(set(before).difference(failed))
        return Counter(row[0] for row in fresh)

    def add(self, rows: Sequence[Row]) -> None:
        """Deliveries that were not pending until now become rows."""
        self.table.insert(rows)
        self.bytes.more.update(self.bytes_of(rows))

    def bytes_of(self, rows: Sequence[Row]) -> Counter[int]:
        """Bytes of the events and names of deliveries, by subscriber. Of both kinds of rows: the event is the third
        value, and the names are the fourth."""
        found: Counter[int] = Counter()
        sizes = self.events.of(list({row[2] for row in rows}), "length(body)")
        for row in rows:
            if row[2] in sizes:
                found[row[0]] += len(row[3]) + int(sizes[row[2]][1])
        return found

    def removed(self, rows: Sequence[Row]) -> None:
        """These deliveries, as rows of their table, are not pending any more."""
        self.bytes.more.subtract(self.bytes_of(rows))
        self.events.drop_unneeded({row[2] for row in rows if row[6]})

    def settle(self, limit: int = SETTLE_ROWS, before: float = math.inf) -> int:
        """Turn about `limit` deliveries of the oldest records of the log, those written before the time `before`, into
        rows; returns how many."""
        found = self.recent.settle(limit, before)
        self.insert_recent(found)
        return len(found)

    def insert_recent(self, deliveries: Sequence[RecentDelivery], kept: int = 0) -> None:
        """Deliveries that were taken out of the log become rows. A search that is under way may be past their keys, so
        it is told when they expire."""
        if deliveries:
            if self._settled_expiry is not None:
                known = self.events.expiries([row[2] for row in deliveries]).values()
                self._settled_expiry = min([self._settled_expiry, *known])
            self.table.insert(row_of(one, kept) for one in deliveries)

    def settle_overdue(self) -> int:
        """Turn the deliveries of records that are not new any more into rows; returns how many."""
        return self.settle(before=self.recent.due())

    def acknowledge(self, keys: Iterable[tuple[int, int, int]]) -> dict[int, int]:
        """Remove deliveries (subscriber, level, seq); returns how many each subscriber had of them."""
        recent, others = self.recent.remove(keys)
        rows = list(map(row_of, recent))
        if others:
            rows += self.table.take((subscriber, TOP - level, seq) for subscriber, level, seq in others)
        self.removed(rows)
        return Counter(row[0] for row in rows)

    def pending_levels(self, subscriber: int, seqs: Sequence[int]) -> list[tuple[int, int]]:
        """(level, seq) of those of the events that are pending."""
        recent = [(row[1], seq) for seq in seqs if (row := self.recent.get(subscriber, seq)) is not None]
        query = """SELECT urgency, seq FROM deliveries WHERE subscriber = ?1
                   AND seq IN (SELECT value FROM json_each(?2)) AND urgency IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"""
        rows = self.db.execute(query, (subscriber, msgspec.json.encode(seqs).decode()))
        return recent + [(TOP - urgency, seq) for urgency, seq in rows]

    def of(self, subscriber: int) -> Iterator[Row]:
        """The pending deliveries of a subscriber: the columns of table `deliveries`."""
        yield from map(row_of, self.recent.of(subscriber))
        for *row, _ in self.table.scan("subscriber = ?", (subscriber,)):
            yield tuple(row)

    def fetch(self, subscriber: int, skip: set[int], limit: int) -> tuple[list[StoredDelivery], bool]:
        """The next deliveries in order, which are marked as sent, and whether there are more."""
        query = f"""SELECT d.*, {TIME_OF}, {BODY_OF} FROM {WITH_EVENTS} WHERE d.subscriber = ? AND {HAS_EVENT}
                    ORDER BY d.urgency, d.seq"""
        rows = self.db.execute(query, (subscriber,))
        settled = list(islice((row for row in rows if row[2] not in skip), limit + 1))
        rows.close()
        recent = self.recent.next_of(subscriber, skip, self.events.table.first(), limit + 1)
        order = sorted([(row[1], row[2]) for row in settled] + [(TOP - row[1], row[2]) for row in recent])
        chosen = set(order[:limit])
        settled = [row for row in settled if (row[1], row[2]) in chosen]
        recent = [row for row in recent if (TOP - row[1], row[2]) in chosen]
        self.recent.mark_sent([(subscriber, row[2]) for row in recent if not row[4]])
        self._mark_sent(settled)
        found = [
            StoredDelivery(seq, TOP - urgency, ids.splitlines(), bool(sent), tries, when, body)
            for _, urgency, seq, ids, sent, tries, _, _, when, body in settled
        ]
        events = self.events.of([row[2] for row in recent])
        found += [
            StoredDelivery(seq, level, ids.splitlines(), bool(sent), 0, *events[seq])
            for _, level, seq, ids, sent in recent
        ]
        found.sort(key=lambda one: (-one.level, one.seq))
        return found, len(order) > limit

    def _mark_sent(self, rows: Sequence[Row]) -> None:
        """Rows of table `deliveries` are sent. They return to the log, where an acknowledgement costs little, if they
        fit: otherwise others, which are sent soon, would become rows instead. Those of kept events and those with a
        number of tries stay rows, because the log does not keep this."""
        fits = not self.recent.crowded(len(rows))
        returning: list[Row] = []
        staying: list[Row] = []
        for row in rows:
            (returning if fits and not row[5] and not row[6] else staying).append(row[:8])
        self.table.delete_read(returning)
        self.recent.record([(row[0], TOP - row[1], row[2], row[3], 1) for row in returning])
        self.table.put([(*row[:4], 1, *row[5:7]) for row in staying if not row[4]])

    def settled(self, subscriber: int, level: int, seq: int) -> Row | None:
        """A pending delivery as a row of table `deliveries`; if it is in the log, it becomes one."""
        if (recent := self.recent.take(subscriber, level, seq)) is not None:
            self.insert_recent([recent])
        for *row, _ in self.table.scan("subscriber = ? AND urgency = ? AND seq = ?", (subscriber, TOP - level, seq)):
            return tuple(row)
        return None

    def retry(self, subscriber: int, level: int, seq: int, tries: int) -> None:
        row = self.settled(subscriber, level, seq)
        if row is not None:
            self.table.put([(*row[:4], 1, tries, row[6])])

    def take(self, subscriber: int, keys: Iterable[tuple[int, int]]) -> list[Row]:
        """Remove pending deliveries (level, seq) from the log or their table; returns those that were there as rows of
        the table, by age. The caller goes on with `_removed` when it has read their events."""
        recent, others = self.recent.remove((subscriber, *key) for key in keys)
        settled = self.table.take((subscriber, TOP - level, seq) for _, level, seq in others)
        return sorted([*map(row_of, recent), *settled], key=lambda row: row[2])

    def bury(
        self,
        subscriber: int,
        keys: Sequence[tuple[int, int]],
        tries: int,
        reason: str,
        most: int,
        most_of_principal: int = NEVER,
    ) -> int:
        """Turn deliveries (level, seq) into dead letters; returns how many. Only the newest `most` letters of the
        subscriber are kept, and of all subscribers of its principal so many together."""
        rows = self.take(subscriber, keys)
        kept = rows[max(len(rows) - most, 0) :]
        texts = {seq: body for seq, (_, body) in self.events.of([row[2] for row in kept]).items()}
        first, now = self.letters.table.take_numbers(len(kept)), clock.now()
        self.letters.add([
            (number, subscriber, TOP - urgency, seq, ids, tries, reason, now, texts.get(seq))
            for number, (_, urgency, seq, ids, *_) in enumerate(kept, first)
        ])  # fmt: skip
        self.subscribers.add_losses(subscriber, dead=len(rows))
        self.removed(rows)
        self.letters.limit(subscriber, most, most_of_principal)
        return len(rows)

    def revive(self, numbers: Sequence[int]) -> list[tuple[int, int, int]]:
        """Turn dead letters into deliveries again; returns their (number, subscriber, seq). A letter is skipped if its
        event is pending for the subscriber already or has expired, or if it has no text to send."""
        revived = []
        now = clock.now()
        for number in numbers:
            for row in list(self.letters.table.scan("number = ?", (number,))):
                _, subscriber, level, seq, ids, *_, died, body, _ = row
                stored = self.events.of([seq], "NULL").get(seq)
                if (
                    body is None
                    or not self.subscribers.existing([subscriber])
                    or self.pending_levels(subscriber, [seq])
                    or 0 < expires_at(0 if stored is None else stored[0], body) <= now
                ):
                    continue
                if stored is None:  # the time of the event is gone with it
                    self.events.keep([(seq, died, body)])
                self.add([(subscriber, TOP - level, seq, ids, 1, 0, int(seq < self.events.table.first()))])
                self.letters.delete("number = ?", (number,))
                revived.append((number, subscriber, seq))
        return revived

    def add_replayed(self, subscriber: int, rows: Iterable[tuple[int, int, str]]) -> int:
        """Add deliveries (level, seq, ids) of old events, except those pending already and those whose event has been
        removed; returns how many were added. However many are pending, only those of these events are looked for."""
        if not self.subscribers.existing([subscriber]):
            return 0
        wanted = [row for row in rows if row[1] >= self.events.table.first()]
        pending = {seq for _, seq in self.pending_levels(subscriber, [seq for _, seq, _ in wanted])}
        fresh = [(subscriber, TOP - level, seq, ids, 1, 0, 0) for level, seq, ids in wanted if seq not in pending]
        self.add(fresh)
        return len(fresh)

    def pending(self) -> dict[int, int]:
        """The number of pending deliveries of each subscriber; called before the writer runs."""
        query = f"SELECT d.subscriber, count(*) FROM {WITH_EVENTS} WHERE {HAS_EVENT} GROUP BY d.subscriber"
        counts = Counter(dict(self.db.execute(query)))
        counts.update(row[0] for row in self.recent.all() if row[2] >= self.events.table.first())
        return counts

    def unacknowledged(self) -> int:
        """The number of pending deliveries, from any thread."""
        return self.table.rows() + self.recent.count

    def pending_of(self, subscriber: int, most: int) -> int:
        """The number of pending deliveries of a subscriber in this transaction; `most` if there are more."""
        query = "SELECT count(*) FROM (SELECT 1 FROM deliveries WHERE subscriber = ? LIMIT ?)"
        ((settled,),) = self.db.execute(query, (subscriber, most))
        return min(int(settled) + self.recent.count_of(subscriber), most)

    def oldest(self, subscriber: int, count: int) -> list[tuple[int, int]]:
        """(level, seq) of the `count` oldest pending deliveries."""
        query = "SELECT seq FROM deliveries WHERE subscriber = ? AND urgency = ? ORDER BY seq LIMIT ?"
        found = [(row[1], row[2]) for row in self.recent.of(subscriber)]
        for urgency in range(LEVELS):  # each level is in order already
            found += [(TOP - urgency, seq) for (seq,) in self.db.execute(query, (subscriber, urgency, count))]
        return heapq.nsmallest(count, found, key=lambda key: key[1])

    def expired_of(self, keys: Sequence[tuple[int, int]], now: int) -> list[tuple[int, int]]:
        """Those of the deliveries (level, seq) whose event has expired."""
        expiries = self.events.expiries([seq for _, seq in keys])
        return [key for key in keys if expiries.get(key[1], NEVER) <= now]

    def expired(
        self, after: tuple[int, int, int], limit: int, now: int
    ) -> tuple[list[tuple[int, int, int]], int, tuple[int, int, int] | None]:
        """Look at the next `limit` deliveries after the key (subscriber, urgency, seq). Returns (subscriber, level,
        seq) of those that have expired; when the first of the others expires, 0 if none does; and the key of the last
        one. None instead of a key: these were all, with those of the log. What is settled during such a search may
        be missed by it, and counts as one of the others."""
        if after[0] < 0:
            self._settled_expiry = NEVER
        query = f"""SELECT d.subscriber, d.urgency, d.seq, ifnull({TIME_OF}, 0), substr({BODY_OF}, -{TTL_BYTES})
                    FROM {WITH_EVENTS}
                    WHERE (d.subscriber, d.urgency, d.seq) > (?, ?, ?)
                    ORDER BY d.subscriber, d.urgency, d.seq LIMIT ?"""
        rows = list(self.db.execute(query, (*after, limit)))
        key = tuple(rows[-1][:3]) if len(rows) == limit else None
        found = [(number, TOP - urgency, seq, when, end) for number, urgency, seq, when, end in rows]
        if key is None and self.recent.count:
            recent = list(self.recent.all())
            ends = self.events.of(sorted({row[2] for row in recent}), f"substr(body, -{TTL_BYTES})")
            found += [(*row[:3], *ends[row[2]]) for row in recent if row[2] in ends]
        late, soonest = [], 0
        for number, level, seq, when, end in found:
            expires = expires_at(when, end or b"")
            if 0 < expires <= now:
                late.append((number, level, seq))
            elif expires:
                soonest = min(soonest or expires, expires)
        if key is None:
            if self._settled_expiry is not None and self._settled_expiry < NEVER:
                soonest = min(soonest or NEVER, self._settled_expiry)
            self._settled_expiry = None
        return late, soonest, key
