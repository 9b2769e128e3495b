"""Stored subscribers: their settings and owners, their subscriptions, and how many deliveries they did not get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import apsw
import msgspec

from hitbox.broker.store.checked_table import CheckedTable
from hitbox.broker.store.dead_letters import DeadLetters
from hitbox.broker.store.search import Reader
from hitbox.broker.store.tables import READABLE, StoredChange


class StoredSubscribers:
    def __init__(self, db: apsw.Connection, reader: Reader, tables: Mapping[str, CheckedTable], letters: DeadLetters):
        self.db, self.reader, self.letters = db, reader, letters
        self.table, self.subscriptions, self.changes = (tables[n] for n in ("subscribers", "subscriptions", "changes"))
        self.owners, self.suspended, self._losses = (tables[n] for n in ("owners", "suspended", "losses"))

    def put(self, number: int, name: str, settings: bytes, owner: str = "") -> None:
        """Store a subscriber. `owner`: the principal that it belongs to."""
        self.table.put([(number, name, settings)])
        if owner:
            self.letters.hand_over(number, owner)
            self.owners.put([(number, owner)])

    def existing(self, numbers: Iterable[int]) -> set[int]:
        """Those of the subscribers that exist in this transaction."""
        query = "SELECT number FROM subscribers WHERE number IN (SELECT value FROM json_each(?))"
        return {number for (number,) in self.db.execute(query, (msgspec.json.encode(sorted(numbers)).decode(),))}

    def remove(self, number: int, owner: str) -> None:
        """Remove a subscriber and its subscriptions."""
        names = [name for (_, name, *_) in self.subscriptions.scan("subscriber = ?", (number,))]
        self.change([StoredChange(number, owner, [], names)])
        for table in (self._losses, self.owners, self.table):
            table.delete([(number,)])

    def change(self, changes: Sequence[StoredChange]) -> set[int]:
        """Change subscriptions, no one twice, and add their names to table `changes`. Returns the subscribers that do
        not exist: nothing is stored for them."""
        for one in changes:
            if one.settings is not None:
                self.put(one.subscriber, one.owner, one.settings, one.claimed)
        wanted = {one.subscriber for one in changes}
        missing = wanted - self.existing(wanted)
        known = [one for one in changes if one.subscriber not in missing]
        self.subscriptions.put([(one.subscriber, *row) for one in known for row in one.put])
        self.subscriptions.delete((one.subscriber, name) for one in known for name in one.remove)
        if self.suspended.rows():
            self.suspended.delete((one.subscriber, row[0]) for one in known for row in one.put)
            self.suspended.delete((one.subscriber, name) for one in known for name in one.remove)
        names = [(one.owner, name) for one in known for name in (*(row[0] for row in one.put), *one.remove)]
        self.changes.insert((seq, *name) for seq, name in enumerate(names, self.changes.next()))
        return missing

    def suspend(self, rows: Iterable[tuple[int, str, int, str]]) -> None:
        """Set subscriptions aside: (subscriber, name, time, reason). Those that do not exist any more are left out."""
        there = "SELECT 1 FROM subscriptions WHERE subscriber = ? AND name = ?"
        self.suspended.put([row for row in rows if list(self.db.execute(there, row[:2]))])

    def resume(self, subscriber: int, name: str) -> None:
        """Use a subscription again that was set aside."""
        self.suspended.delete([(subscriber, name)])

    def suspended_of(self, subscriber: int, names: Iterable[str]) -> dict[str, tuple[int, str]]:
        """{name: (time, reason)} of those that are set aside; from any thread."""
        query = "SELECT time, reason FROM suspended WHERE subscriber = ? AND name = ?"
        found = ((name, self.reader.read(query, (subscriber, name))) for name in names)
        return {name: (rows[0][0], rows[0][1]) for name, rows in found if rows}

    def subscriptions_of(self, subscriber: int, names: Iterable[str]) -> dict[str, tuple[str, int, str]]:
        """{name: (where, priority, about)} of those that exist."""
        query = f"SELECT wanted, priority, about FROM subscriptions WHERE subscriber = ? AND name = ? AND {READABLE}"
        found = ((name, self.reader.read(query, (subscriber, name))) for name in names)
        return {name: (rows[0][0], rows[0][1], rows[0][2]) for name, rows in found if rows}

    def add_losses(self, subscriber: int, dropped: int = 0, expired: int = 0, dead: int = 0) -> None:
        """Count deliveries that a subscriber did not get, with what removes them."""
        if dropped or expired or dead:
            known = next(((row[1:4]) for row in self._losses.scan("subscriber = ?", (subscriber,))), (0, 0, 0))
            self._losses.put([(subscriber, known[0] + dropped, known[1] + expired, known[2] + dead)])

    def losses(self) -> dict[int, tuple[int, int, int]]:
        """How many deliveries each subscriber did not get: dropped, expired, dead."""
        return {number: (dropped, expired, dead) for number, dropped, expired, dead, _ in self._losses.scan()}
