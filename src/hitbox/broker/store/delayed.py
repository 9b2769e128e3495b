"""Delayed events in the store: until they are due they are in a table of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hitbox.broker.store.checked_table import CheckedTable, Row
from hitbox.broker.store.events import StoredEvents
from hitbox.broker.store.search import Reader
from hitbox.broker.store.tally import Tally


class StoredDelayed:
    """`counts`: how many each principal has."""

    def __init__(self, reader: Reader, table: CheckedTable, events: StoredEvents):
        self.reader, self.table, self.events = reader, table, events
        self.counts = Tally[str]()

    def load(self) -> None:
        self.counts.load(dict(self.reader.read("SELECT principal, count(*) FROM delayed GROUP BY principal")))

    def add(self, rows: Iterable[tuple[int, str, bytes]]) -> int:
        """Store (due, principal, body); returns the number of the first."""
        rows = list(rows)
        first = self.table.take_numbers(len(rows))
        numbered = [(number, *row) for number, row in enumerate(rows, first)]
        self.table.insert(numbered)
        self.counts.more.update(row[2] for row in numbered)
        return first

    def due(self, now: int, limit: int, but: Sequence[str] = ()) -> list[tuple[int, str, int]]:
        """(number, principal, bytes) of those that are due, in their order, but those of some principals; from any
        thread. The index alone tells which, so that very many of such a principal are soon passed over."""
        query = """SELECT d.number, d.principal, length(d.body) FROM (
                       SELECT number FROM delayed WHERE due <= ? AND principal NOT IN (SELECT value FROM json_each(?))
                       ORDER BY due, number LIMIT ?
                   ) JOIN delayed d USING (number) ORDER BY d.due, d.number"""
        return self.reader.read(query, (now, msgspec.json.encode(but).decode(), limit))

    def first_due(self) -> int | None:
        """When the next one is due; from any thread."""
        found: list[tuple[int | None]] = self.reader.read("SELECT min(due) FROM delayed")
        return found[0][0]

    def from_number(self, first: int, limit: int) -> list[Row]:
        """(number, due, principal, body), beginning at a number; from any thread."""
        query = "SELECT number, due, principal, body FROM delayed WHERE number >= ? ORDER BY number LIMIT ?"
        return self.reader.read(query, (first, limit))

    def move(self, numbers: Sequence[int], now: int) -> tuple[int, list[tuple[str, bytes]]]:
        """Make delayed events to events. Returns the number of the first of the events, and (principal, body) of each;
        those that were cancelled are missing."""
        found = [row[2:4] for number in numbers for row in self.table.scan("number = ?", (number,))]
        self.table.delete((number,) for number in numbers)
        self.counts.more.subtract(principal for principal, _ in found)
        return self.events.append([body for _, body in found], now, [principal for principal, _ in found]), found

    def cancel(self, numbers: Sequence[int]) -> list[tuple[str, bytes]]:
        """Delete delayed events; returns (principal, body) of those that were there."""
        known = [row for number in dict.fromkeys(numbers) for row in self.table.scan("number = ?", (number,))]
        self.table.delete((row[0],) for row in known)
        self.counts.more.subtract(row[2] for row in known)
        return [row[2:4] for row in known]
