"""Tables that detect damage: one CRC per row, and a ledger with the number of rows and the sum of CRCs per table.

    ledger:  name        rows   sum of CRCs   first   last
             events        812     ...           189   1000     rows are numbered first..last without a gap
             deliveries   4711     ...             0      0
             commits     12345                                  plus one per commit; compared with the commit marker

A flipped byte changes the CRC of its row, a lost or doubled row changes count and sum, and a lost transaction changes
the count of commits. The ledger is written in the transaction whose rows it counts. A valid CRC does not prove that the
broker wrote the row, and SQLite accepts any value in any column, so the types are checked here too.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import apsw
import msgspec

from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import MOST, NAME
from hitbox.protocol.errors import StoreDamaged

Row = tuple[Any, ...]
_encode = msgspec.msgpack.Encoder().encode
SUM_MODULUS = 2**62
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Name = Annotated[str, msgspec.Meta(pattern=rf"^(?:{NAME.pattern})\Z")]
_names = re.compile(rf"(?:(?:{NAME.pattern})\n)*")
CHECKED_TOGETHER = 1_000
BULK_BYTES = 16 * 2**20
"""Of rows that one statement inserts. SQLite takes a text of 1 GB."""


def _json(rows: list[Any]) -> str:
    return msgspec.json.encode(rows).decode()


def _json_parts(rows: list[Any]) -> Iterator[str]:
    """Rows as JSON lists of at most BULK_BYTES, unless a single row is larger."""
    text = msgspec.json.encode(rows)
    if len(text) <= BULK_BYTES or len(rows) == 1:
        yield text.decode()
    else:
        half = len(rows) // 2
        yield from _json_parts(rows[:half])
        yield from _json_parts(rows[half:])


def _with_text_body(row: Row) -> Row:
    return (*row[:-2], row[-2].decode(), row[-1]) if isinstance(row[-2], bytes) else row


def crc_of(row: Sequence[Any]) -> int:
    return zlib.crc32(_encode(row))


_decode_item = msgspec.json.Decoder(PublishedEvent).decode


class Columns:
    """The columns of a table by name, with their types. The first `keys` columns are the key; a column `crc` follows.

    A `bulk` table is filled with JSON (see CheckedTable). A column called body is always the last one and holds the
    JSON text of an event.
    """

    def __init__(self, columns: dict[str, Any], keys: int = 1, bulk: bool = False):
        self.names, self.keys, self.bulk = list(columns), keys, bulk
        self._decode = msgspec.msgpack.Decoder(tuple[tuple(columns.values())]).decode  # type: ignore[misc]
        self._named = [at for at, kind in enumerate(columns.values()) if kind is Name]
        plain = tuple(str if kind is Name else kind for kind in columns.values())
        self._decode_all = msgspec.msgpack.Decoder(list[tuple[plain]]).decode  # type: ignore[valid-type]

    def all_sound(self, rows: Sequence[Row]) -> bool:
        """Whether no row, with its CRC, has a fault; takes less time than `fault` for each."""
        try:
            encoded = [_encode(row[:-1]) for row in rows]
            crcs = [row[-1] for row in rows]
            if crcs != list(map(zlib.crc32, encoded)) or any(type(crc) is not int for crc in crcs):
                return False
            self._decode_all(b"\xdd" + len(rows).to_bytes(4, "big") + b"".join(encoded))  # as one list
            if self.names[-1] == "body":
                for row in rows:
                    if row[-2] is not None:
                        _decode_item(row[-2])
        except (msgspec.DecodeError, OverflowError, UnicodeDecodeError, RecursionError):
            return False
        for at in self._named:
            lines = "".join([f"{row[at]}\n" for row in rows])
            if not _names.fullmatch(lines) or lines.count("\n") != len(rows):
                return False
        return True

    def fault(self, row: Sequence[Any], crc: Any) -> str:
        """Why a row is damaged or invalid; empty if it is fine."""
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
    """Every row of a table. SQLite accepts any bytes as text; bytes that are not UTF-8 are damage."""
    try:
        yield from db.execute(f"SELECT * FROM {table}")
    except UnicodeDecodeError as problem:
        raise StoreDamaged(f"table {table}: it contains a text that is not UTF-8 ({problem.reason})") from None


@dataclass(slots=True)
class LedgerEntry:
    """What the ledger holds for one table; `first` and `last` only for a numbered table."""

    rows: int = 0
    sum: int = 0
    first: int = 1
    last: int = 0


class Ledger:
    """The entries of all tables: read at start, written at commit, read again after a rollback."""

    def __init__(self, db: apsw.Connection):
        self._db = db
        db.execute(
            "CREATE TABLE IF NOT EXISTS ledger(name TEXT PRIMARY KEY, rows, sum, first, last, crc) WITHOUT ROWID"
        )
        self._entries: dict[str, LedgerEntry] = {}
        self._changed: dict[str, None] = {}  # a dict keeps the order, so that simulated runs are repeatable
        self._stale = False
        self.reload()

    def reload(self) -> None:
        """Read the entries again, and forget what was not committed."""
        self._stale = True  # until reading has succeeded
        found: dict[str, LedgerEntry] = {}
        for *row, crc in rows_of(self._db, "ledger"):
            if fault := LEDGER.fault(row, crc):
                raise StoreDamaged(f"the ledger's row of {row[0]!r} is damaged ({fault})")
            found[row[0]] = LedgerEntry(*row[1:])
        self._entries = found  # in one assignment: other threads read it
        self._changed.clear()
        self._stale = False

    def refresh(self) -> None:
        """Read the entries again if that failed the last time."""
        if self._stale:
            self.reload()

    def entry(self, name: str) -> LedgerEntry:
        """The entry of a table, to be read only."""
        return self._entries.get(name) or LedgerEntry()

    def changed_entry(self, name: str) -> LedgerEntry:
        """The entry of a table, to be changed: `flush` will write it."""
        self._changed[name] = None
        return self._entries.setdefault(name, LedgerEntry())

    def flush(self) -> int:
        """Write the changed entries and count the commit; returns the number of commits."""
        commits = self.changed_entry("commits")
        commits.rows += 1
        for name in self._changed:
            a = self._entries[name]
            row = (name, a.rows, a.sum, a.first, a.last)
            self._db.execute("INSERT OR REPLACE INTO ledger VALUES(?,?,?,?,?,?)", (*row, crc_of(row)))
        self._changed.clear()
        return commits.rows


class CheckedTable:
    """A table whose rows have CRCs and are counted in the ledger.

    A `bulk` table gets its rows as JSON, many in one value. SQLite inserts them without taking Python's interpreter
    lock in between, which a busy event loop releases only every few milliseconds. Its texts must not contain NUL
    characters, and its last column, if it is called body, holds UTF-8 bytes.
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
        self._select_all = f"SELECT * FROM {name} WHERE {chosen}"
        self._delete_all = f"DELETE FROM {name} WHERE {chosen}"
        self._count_all = f"SELECT {names[0]}, count(*), sum(crc) FROM {name} WHERE {chosen} GROUP BY {names[0]}"
        if names[-1] == "body":
            parts[-2] = f"CAST({parts[-2]} AS BLOB)"
        self._insert_all = f"INSERT INTO {name} SELECT {', '.join(parts)} FROM json_each(?)"

    def insert(self, rows: Iterable[Row]) -> None:
        """Insert rows with new keys; in a numbered table, the next numbers."""
        entry = self._ledger.changed_entry(self.name)
        made = [(*row, crc_of(row)) for row in rows]
        if self._bulk:
            for text in _json_parts([_with_text_body(row) for row in made]):
                self._db.execute(self._insert_all, (text,))
        else:
            self._db.executemany(self._insert, made)
        entry.rows += len(made)
        entry.sum = (entry.sum + sum(row[-1] for row in made)) % SUM_MODULUS
        if self.numbered and made:
            entry.last = made[-1][0]

    def put(self, rows: Sequence[Row]) -> None:
        """Insert rows, and replace those with the same keys."""
        self.delete(row[: self.keys] for row in rows)
        self.insert(rows)

    def delete(self, keys: Iterable[Row]) -> int:
        """Delete rows by key; returns how many existed."""
        if self._bulk:
            return sum(self.delete_counted(keys).values())
        return self._subtract_crcs([crc for (crc,) in self._db.executemany(self._delete, keys)])

    def delete_counted(self, keys: Iterable[Row]) -> dict[Any, int]:
        """Delete rows of a bulk table by key; returns how many existed, by the first column of the key."""
        chosen = (_json(list(keys)),)
        found = list(self._db.execute(self._count_all, chosen))
        if found:
            self._db.execute(self._delete_all, chosen)
        self._subtract(sum(count for _, count, _ in found), sum(total for _, _, total in found))
        return {first: count for first, count, _ in found}

    def take(self, keys: Iterable[Row]) -> list[Row]:
        """Delete rows of a bulk table by key; returns those that existed."""
        found = list(self._db.execute(self._select_all, (_json(list(keys)),)))
        self.delete_read(found)
        return [row[:-1] for row in found]

    def delete_read(self, rows: Sequence[Row]) -> None:
        """Delete rows of a bulk table that were just read, with their CRCs."""
        if rows:
            self._db.execute(self._delete_all, (_json([row[: self.keys] for row in rows]),))
            self._subtract_crcs([row[-1] for row in rows])

    def delete_where(self, condition: str, values: Row = ()) -> int:
        return self._subtract_crcs(
            [crc for (crc,) in self._db.execute(f"DELETE FROM {self.name} WHERE {condition} RETURNING crc", values)]
        )

    def delete_through(self, last: int) -> int:
        """Delete the rows of a numbered table up to `last`; returns how many."""
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

    def take_numbers(self, count: int) -> int:
        """The first of so many numbers that were never used, and are now."""
        entry = self._ledger.changed_entry(self.name)
        entry.last += count
        return entry.last - count + 1

    def next(self) -> int:
        return self._ledger.entry(self.name).last + 1

    def first(self) -> int:
        return self._ledger.entry(self.name).first

    def rows(self) -> int:
        return self._ledger.entry(self.name).rows

    def scan(self, condition: str = "TRUE", values: Row = ()) -> Iterator[Row]:
        return iter(self._db.execute(f"SELECT * FROM {self.name} WHERE {condition}", values))

    def check(self, jumps: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Read every row; yields what is damaged, missing or superfluous. `jumps`: where numbers were left out, (the
        last before, the next one), in their order."""
        entry = self._ledger.entry(self.name)
        count = total = 0
        expected = entry.first
        every = rows_of(self._db, self.name)
        while some := list(islice(every, CHECKED_TOGETHER)):
            if not self.columns.all_sound(some):
                for *row, crc in some:
                    if fault := self.columns.fault(row, crc):
                        yield f"table {self.name}: the row {row[: self.keys]} is damaged ({fault})"
            for number, *_ in some if self.numbered else ():
                expected = _next_given(expected, jumps)
                if number != expected:
                    yield f"table {self.name}: number {expected} is missing (found {number})"
                expected = number + 1
            count += len(some)
            total += sum(row[-1] for row in some if type(row[-1]) is int)
        if count == entry.rows and total % SUM_MODULUS != entry.sum:
            yield f"table {self.name}: its rows are not those that the ledger counted"
        if count != entry.rows:
            yield f"table {self.name} holds {count} rows, the ledger says {entry.rows}"
        expected = _next_given(expected, jumps)
        if self.numbered and expected != entry.last + 1:
            yield f"table {self.name} ends at {expected - 1}, the ledger says {entry.last}"


def _next_given(number: int, jumps: Sequence[tuple[int, int]]) -> int:
    """The number, or the next one that was not left out."""
    for last, following in jumps:
        if last < number < following:
            number = following
    return number
