"""Stored events: those of the log, and those that retention has passed and that are still needed (table `kept`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw
import msgspec

from hitbox.broker.events.published_event import TTL_BYTES, expires_at
from hitbox.broker.store.checked_table import CheckedTable, Row
from hitbox.broker.store.search import Reader
from hitbox.broker.store.tables import NEVER, UNUSED, Meta
from hitbox.broker.store.tally import Tally

EVENT_BYTES = 64
"""Of a row of table `events`, about, without its text."""


class StoredEvents:
    """`totals`: bytes that the log of "events" takes, bytes that are "kept", and how many events were "trimmed"."""

    def __init__(self, db: apsw.Connection, reader: Reader, tables: Mapping[str, CheckedTable], meta: Meta, page: int):
        self.db, self.reader, self.table, self.kept = db, reader, tables["events"], tables["kept"]
        self.meta, self._page = meta, page
        self.totals = Tally[str]()

    def load(self) -> None:
        """Count the bytes, at a start."""
        ((kept,),) = self.db.execute("SELECT ifnull(sum(length(body)), 0) FROM kept")
        self.totals.load({"kept": kept, "events": self.bytes_through(NEVER)})

    def total(self, name: str) -> int:
        """What is committed; from any thread."""
        return self.totals.committed.get(name, 0)

    def append(self, bodies: Sequence[bytes], now: int, principals: Sequence[str] = ()) -> int:
        """Store events, and who published each of them; nobody, if that is left out. Returns the number of the first
        one."""
        first = self.table.next()
        events = zip(principals or [""] * len(bodies), bodies, strict=True)
        self.table.insert((seq, now, *event) for seq, event in enumerate(events, first))
        self.totals.more["events"] += sum(self.size_of(len(body)) for body in bodies)
        return first

    def of(self, seqs: Sequence[int], text: str = "body") -> dict[int, tuple[int, bytes]]:
        """{seq: (time, body)} of events. `text`: what of the body, in SQL."""
        if not seqs:
            return {}
        wanted = msgspec.json.encode(seqs).decode()
        query = f"SELECT seq, time, {text} FROM events WHERE seq IN (SELECT value FROM json_each(?))"
        found = {seq: (when, body) for seq, when, body in self.db.execute(query, (wanted,))}
        if self.kept.rows() and len(found) < len(seqs):
            query = f"SELECT event, time, {text} FROM kept WHERE event IN (SELECT value FROM json_each(?))"
            found.update((event, (when, body)) for event, when, body in self.db.execute(query, (wanted,)))
        return found

    def expiries(self, seqs: Sequence[int]) -> dict[int, int]:
        """When events expire, those that do."""
        ends = self.of(seqs, f"substr(body, -{TTL_BYTES})")
        return {seq: expires for seq, end in ends.items() if (expires := expires_at(*end))}

    def from_number(self, seq: int, limit: int) -> list[Row]:
        """(seq, time, principal, body) of the next events, from any thread."""
        query = "SELECT seq, time, principal, body FROM events WHERE seq >= ? ORDER BY seq LIMIT ?"
        return self.reader.read(query, (seq, limit))

    def number_of_latest(self, count: int) -> int:
        """The number with which the latest `count` events begin, which may be fewer; 0: there are none."""
        query = "SELECT min(seq) FROM (SELECT seq FROM events ORDER BY seq DESC LIMIT ?)"
        ((found,),) = self.reader.read(query, (count,))
        return found or 0

    def newest_time(self) -> int:
        """Of an event; in microseconds since 1970. 0: there is none."""
        newest = self.reader.read("SELECT time FROM events ORDER BY seq DESC LIMIT 1")
        return int(newest[0][0]) if newest else 0

    def failed(self) -> list[int]:
        """Events that could not be matched."""
        for (value,) in self.reader.read("SELECT value FROM meta WHERE key = 'failed'"):
            return list(msgspec.json.decode(value))
        return []

    def failed_events(self) -> list[Row]:
        """(seq, time, body) of the events that could not be matched; from any thread."""
        wanted = msgspec.json.encode(self.failed()).decode()
        query = """SELECT seq, time, body FROM events WHERE seq IN (SELECT value FROM json_each(?1))
                   UNION ALL SELECT event, time, body FROM kept WHERE event IN (SELECT value FROM json_each(?1))"""
        return sorted(self.reader.read(query, (wanted,)))

    def keep(self, events: Sequence[Row]) -> None:
        """Events (seq, time, body) that retention has passed are still needed."""
        self.kept.insert(events)
        self.totals.more["kept"] += sum(len(body) for *_, body in events)

    def drop_unneeded(self, seqs: set[int]) -> None:
        """Delete those of the events from table `kept` that nobody needs any more."""
        wanted = seqs.difference(self.meta.get("failed", [])) if seqs else seqs
        if wanted:
            query = f"SELECT event, length(body) FROM kept WHERE event IN (SELECT value FROM json_each(?)) AND {UNUSED}"
            unused = list(self.db.execute(query, (msgspec.json.encode(sorted(wanted)).decode(),)))
            self.kept.delete((event,) for event, _ in unused)
            self.totals.more["kept"] -= sum(size for _, size in unused)

    def bytes_through(self, last: int) -> int:
        """What the events up to a number take; see `size_of`."""
        size = "iif(length(body) > :page / 2, (length(body) + :page - 5) / (:page - 4) * :page, length(body) + :row)"
        query = f"SELECT ifnull(sum({size}), 0) FROM events WHERE seq <= :last"
        ((found,),) = self.db.execute(query, {"page": self._page, "row": EVENT_BYTES, "last": last})
        return int(found)

    def size_of(self, length: int) -> int:
        """About how much an event takes whose text has so many bytes: a long one has pages of its own."""
        page = self._page
        return (length + page - 5) // (page - 4) * page if length > page // 2 else length + EVENT_BYTES
