"""Tables that know what they should hold: a CRC a row, and a ledger of the number of rows and the sum of their CRCs.

    ledger:  name        rows   sum of CRCs   first   last
             events        812     ...           189   1000     first and last: rows number first..last without a gap
             deliveries   4711     ...             0      0
             commits     12345                                  one more with every commit; the commit marker repeats it

A flipped byte breaks the CRC of its row, a lost or doubled row breaks count and sum, a lost transaction breaks the
count of commits. The ledger is written in the transaction whose rows it counts. A CRC says nothing of who wrote the
row, and SQLite takes any value in any column: the types are checked too, so that nobody else has to.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import apsw
import msgspec

from hitbox.broker.errors import StoreDamaged
from hitbox.broker.published_event import PublishedEvent
from hitbox.broker.settings import MOST

Row = tuple[Any, ...]
_encode = msgspec.msgpack.Encoder().encode
SUM_MODULUS = 2**62
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


def _json(rows: list[Any]) -> str:
    return msgspec.json.encode(rows).decode()


def _with_text_body(row: Row) -> Row:
    return (*row[:-2], row[-2].decode(), row[-1]) if isinstance(row[-2], bytes) else row


def crc_of(row: Sequence[Any]) -> int:
    return zlib.crc32(_encode(row))


_decode_item = msgspec.json.Decoder(PublishedEvent).decode


class Columns:
    """The columns of a table by name, with their types; the first `keys` of them are the key, the CRC comes after them.

    A `bulk` table is filled with JSON (see CheckedTable). A column called body is always the last one and holds the
    JSON text of an event.
    """

    def __init__(self, columns: dict[str, Any], keys: int = 1, bulk: bool = False):
        self.names, self.keys, self.bulk = list(columns), keys, bulk
        self._decode = msgspec.msgpack.Decoder(tuple[tuple(columns.values())]).decode  # type: ignore[misc]

    def fault(self, row: Sequence[Any], crc: Any) -> str:
        """Why a row is not what was written, or could not have been written; empty if it is fine."""
        try:
            data = _encode(row)
            if type(crc) is not int or crc != zlib.crc32(data):
                return "its CRC does not fit"
            self._decode(data)
        except (msgspec.ValidationError, OverflowError) as problem:
            return f"it holds a value of the wrong kind: {problem}"
        try:
            if self.names[-1] == "body" and row[-1] is not None:
                _decode_item(row[-1])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            return f"its text is no event: {problem}"
        return ""


LEDGER = Columns(
    {
        "name": str,
        "rows": Number,
        "sum": Annotated[int, msgspec.Meta(ge=0, lt=SUM_MODULUS)],
        "first": Number,
        "last": Number,
    }
)


def rows_of(db: apsw.Connection, table: str) -> Iterator[Row]:
    """Every row of a table. SQLite takes any bytes for a text; those that are none are damage."""
    try:
        yield from db.execute(f"SELECT * FROM {table}")
    except UnicodeDecodeError as problem:
        raise StoreDamaged(f"table {table}: a text in it is no text any more ({problem.reason})") from None


@dataclass(slots=True)
class LedgerEntry:
    rows: int = 0
    sum: int = 0
    first: int = 1
    last: int = 0


class Ledger:
    """The accounts of all tables: read at start, written at commit, read again after a rollback."""

    def __init__(self, db: apsw.Connection):
        self._db = db
        db.execute(
            "CREATE TABLE IF NOT EXISTS ledger(name TEXT PRIMARY KEY, rows, sum, first, last, crc) WITHOUT ROWID"
        )
        self._entries: dict[str, LedgerEntry] = {}
        self._changed: dict[str, None] = {}  # in order, so that a run can be repeated exactly
        self._stale = False
        self.reload()

    def reload(self) -> None:
        """Forget what was counted and not committed."""
        self._stale = True  # until it has been read: reading may fail
        found: dict[str, LedgerEntry] = {}
        for *row, crc in rows_of(self._db, "ledger"):
            if fault := LEDGER.fault(row, crc):
                raise StoreDamaged(f"the ledger's row of {row[0]!r} is damaged ({fault})")
            found[row[0]] = LedgerEntry(*row[1:])
        self._entries = found  # at once: other threads look at it
        self._changed.clear()
        self._stale = False

    def refresh(self) -> None:
        """Read it, if that failed the last time."""
        if self._stale:
            self.reload()

    def entry(self, name: str) -> LedgerEntry:
        return self._entries.get(name) or LedgerEntry()

    def changed_entry(self, name: str) -> LedgerEntry:
        self._changed[name] = None
        return self._entries.setdefault(name, LedgerEntry())

    def flush(self) -> int:
        """Write what changed, and count the commit."""
        commits = self.changed_entry("commits")
        commits.rows += 1
        for name in self._changed:
            a = self._entries[name]
            row = (name, a.rows, a.sum, a.first, a.last)
            self._db.execute("INSERT OR REPLACE INTO ledger VALUES(?,?,?,?,?,?)", (*row, crc_of(row)))
        self._changed.clear()
        return commits.rows


class CheckedTable:
    """One table.

    A `bulk` table takes its rows as one JSON value: SQLite then works through all of them without asking for the
    interpreter's lock in between, which an event loop that is busy gives away only every few milliseconds. Its texts
    must be free of NUL characters, and a column called body, its last, holds UTF-8 bytes.
    """

    def __init__(self, db: apsw.Connection, ledger: Ledger, name: str, columns: Columns):
        self.name, self._db, self._ledger, self.columns, self._bulk = name, db, ledger, columns, columns.bulk
        names, keys = columns.names, columns.keys
        self.numbered = names[0] == "seq"
        primary = ", ".join(names[:keys])
        kind = "INTEGER PRIMARY KEY" if self.numbered else ""
        rest = "" if self.numbered else f", PRIMARY KEY ({primary})"
        tail = "" if self.numbered else "WITHOUT ROWID"
        db.execute(f"CREATE TABLE IF NOT EXISTS {name}({names[0]} {kind}, {', '.join(names[1:])}, crc{rest}) {tail}")
        marks = ",".join("?" * (len(names) + 1))
        self._insert = f"INSERT INTO {name} VALUES({marks})"
        where = " AND ".join(f"{column} = ?" for column in names[:keys])
        self._delete = f"DELETE FROM {name} WHERE {where} RETURNING crc"
        self.keys = keys
        parts = [f"value ->> {n}" for n in range(len(names) + 1)]
        chosen = f"({primary}) IN (SELECT {', '.join(parts[:keys])} FROM json_each(?))"
        self._delete_all = f"DELETE FROM {name} WHERE {chosen}"
        self._count_all = f"SELECT count(*), ifnull(sum(crc), 0) FROM {name} WHERE {chosen}"
        if names[-1] == "body":
            parts[-2] = f"CAST({parts[-2]} AS BLOB)"
        self._insert_all = f"INSERT INTO {name} SELECT {', '.join(parts)} FROM json_each(?)"

    def insert(self, rows: Iterable[Row]) -> None:
        """Rows that are not there yet; of a numbered table the next ones."""
        entry = self._ledger.changed_entry(self.name)
        made = [(*row, crc_of(row)) for row in rows]
        if self._bulk:
            self._db.execute(self._insert_all, (_json([_with_text_body(row) for row in made]),))
        else:
            self._db.executemany(self._insert, made)
        entry.rows += len(made)
        entry.sum = (entry.sum + sum(row[-1] for row in made)) % SUM_MODULUS
        if self.numbered and made:
            entry.last = made[-1][0]

    def put(self, rows: Sequence[Row]) -> None:
        """Rows that replace those with the same keys."""
        self.delete(row[: self.keys] for row in rows)
        self.insert(rows)

    def delete(self, keys: Iterable[Row]) -> int:
        """How many of the keys were there."""
        if self._bulk:
            chosen = (_json(list(keys)),)
            ((count, total),) = self._db.execute(self._count_all, chosen)
            if count:
                self._db.execute(self._delete_all, chosen)
            return self._subtract(count, total)
        return self._subtract_crcs([crc for (crc,) in self._db.executemany(self._delete, keys)])

    def delete_where(self, condition: str, values: Row = ()) -> int:
        return self._subtract_crcs(
            [crc for (crc,) in self._db.execute(f"DELETE FROM {self.name} WHERE {condition} RETURNING crc", values)]
        )

    def delete_through(self, last: int) -> int:
        """The rows of a numbered table up to `last`."""
        gone = self.delete_where("seq <= ?", (last,))
        entry = self._ledger.changed_entry(self.name)
        entry.first = max(entry.first, min(last, entry.last) + 1)
        return gone

    def _subtract_crcs(self, crcs: list[int]) -> int:
        return self._subtract(len(crcs), sum(crcs))

    def _subtract(self, count: int, total: int) -> int:
        if count:
            entry = self._ledger.changed_entry(self.name)
            entry.rows -= count
            entry.sum = (entry.sum - total) % SUM_MODULUS
        return count

    def next(self) -> int:
        return self._ledger.entry(self.name).last + 1

    def first(self) -> int:
        return self._ledger.entry(self.name).first

    def rows(self) -> int:
        return self._ledger.entry(self.name).rows

    def scan(self, condition: str = "TRUE", values: Row = ()) -> Iterator[Row]:
        return iter(self._db.execute(f"SELECT * FROM {self.name} WHERE {condition}", values))

    def check(self) -> Iterator[str]:
        """Read every row; what is damaged, missing or too many."""
        entry = self._ledger.entry(self.name)
        count = total = 0
        expected = entry.first
        for *row, crc in rows_of(self._db, self.name):
            if fault := self.columns.fault(row, crc):
                yield f"table {self.name}: the row {row[: self.keys]} is damaged ({fault})"
            if self.numbered:
                if row[0] != expected:
                    yield f"table {self.name}: number {expected} is missing (found {row[0]})"
                expected = row[0] + 1
            count, total = count + 1, total + crc
        if count == entry.rows and total % SUM_MODULUS != entry.sum:
            yield f"table {self.name}: its rows are not those that the ledger counted"
        if count != entry.rows:
            yield f"table {self.name} holds {count} rows, the ledger says {entry.rows}"
        if self.numbered and expected != entry.last + 1:
            yield f"table {self.name} ends at {expected - 1}, the ledger says {entry.last}"
