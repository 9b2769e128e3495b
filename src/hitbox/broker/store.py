"""What the broker must not lose, in SQLite: subscriptions, events, pending deliveries, dead letters, schema, tokens.

    DIR/hitbox.db      write-ahead log, synchronous=FULL: a commit is on the disk when it returns
    DIR/beacon         how many commits there were (see beacon.py)
    DIR/snapshots/     the index, derived: read at start, brought up to date from the table `changes`

    meta           key                                    value
    subscribers    number                                 name, settings
    subscriptions  subscriber, name                       where, priority, about
    changes        seq                                    subscriber's name, name: since the last snapshot of the index
    events         seq                                    time, body
    deliveries     subscriber, urgency (9-level), seq     ids, sent, tries, body (only where the event is gone)
    dead           number                                 subscriber, level, seq, ids, tries, reason, time, body

An event is stored first and matched then; `matched` in meta says how far, and is written together with the deliveries,
so after a crash the rest is matched again. A delivery is deleted when it is acknowledged. Deliveries are read in the
order of their key: the most urgent first, then by age.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from hitbox.boxes import LEVELS
from hitbox.broker.beacon import Beacon
from hitbox.broker.errors import StoreDamaged, StoreFailed
from hitbox.broker.tables import Ledger, Row, Table

FORMAT = 1
CHECKPOINT_PAGES = 4_000
TOP = LEVELS - 1


class Stored(NamedTuple):
    """A delivery as it comes back from the store."""

    seq: int
    level: int
    ids: list[str]
    sent: bool
    tries: int
    time: int
    body: bytes


class Store:
    """Opened and checked in the caller's thread; after that only the writer's thread changes it."""

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | None = None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreFailed(f"{self.folder} is in use by another broker") from None
        path = self.folder / "hitbox.db"
        existed = path.exists() and path.stat().st_size > 0
        self.db = apsw.Connection(str(path))
        self._reader = self.db
        self.beacon: Beacon | None = None
        try:
            self._open(path, existed, max_bytes)
        except (apsw.Error, StoreDamaged) as problem:
            self._release()
            raise StoreDamaged(_advice(path, str(problem))) from problem

    def _open(self, path: Path, existed: bool, max_bytes: int | None) -> None:
        os.chmod(path, 0o600)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0", "cache_size=-65536"):
            self.db.execute(f"PRAGMA {pragma}")
        if existed:
            found = [row[0] for row in self.db.execute("PRAGMA integrity_check(5)")]
            if found != ["ok"]:
                raise StoreDamaged("; ".join(found))
        self.db.execute("BEGIN IMMEDIATE")
        self.ledger = Ledger(self.db)
        table = partial(Table, self.db, self.ledger)
        self.meta = table("meta", "key value", 1)
        self.subscribers = table("subscribers", "number name settings", 1)
        self.subscriptions = table("subscriptions", "subscriber name wanted priority about", 2)
        self.changes = table("changes", "seq owner name", 1)
        self.events = table("events", "seq time body", 1, bulk=True)
        self.deliveries = table("deliveries", "subscriber urgency seq ids sent tries body", 3, bulk=True)
        self.dead = table("dead", "number subscriber level seq ids tries reason time body", 1)
        self.tables = [t for t in vars(self).values() if isinstance(t, Table)]
        self.db.execute("COMMIT")
        self._pages = 0
        self._check(existed)
        self.db.set_wal_hook(self._count_pages)
        self._reading = threading.Lock()
        self._reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        if max_bytes is not None:
            size = self.db.pragma("page_size")
            self.db.pragma("max_page_count", max(max_bytes // size, 1))

    def _check(self, existed: bool) -> None:
        known = self.ledger.look("commits").rows
        had_beacon = (self.folder / "beacon").exists()
        self.beacon = Beacon(self.folder / "beacon")
        if known and not had_beacon:
            raise StoreDamaged(f"the store has {known} commits, but its beacon file is missing")
        promised = self.beacon.read()
        if promised > known:
            raise StoreDamaged(f"{promised} commits were made, only the first {known} are there: the end is lost")
        for table in self.tables:
            table.check()
        version = self.get("format", FORMAT)
        if version != FORMAT:
            raise StoreFailed(f"{self.folder} has format {version}; this version of hitbox reads {FORMAT}")
        if not existed:
            self.begin()
            self.keep("format", FORMAT)
            self.commit()

    # ---- transactions, called by the writer

    def begin(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        commits = self.ledger.flush()
        self.db.execute("COMMIT")
        if self.beacon is not None:
            self.beacon.write(commits)
        if self._pages > CHECKPOINT_PAGES:
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._pages = 0

    def rollback(self) -> None:
        """Undo what was not committed, if anything."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
            self.ledger.reload()

    def read(self, query: str, values: Row | dict[str, Any] = ()) -> list[Row]:
        """What is committed, from any thread."""
        with self._reading:
            return list(self._reader.execute(query, values))

    def _count_pages(self, _db: object, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def close(self) -> None:
        if self.beacon is not None:
            self.beacon.write(self.ledger.look("commits").rows, sync=True)
        self._release()

    def _release(self) -> None:
        self._reader.close()
        self.db.close()
        if self.beacon is not None:
            self.beacon.close()
        os.close(self._lock)

    def used(self) -> int:
        """Bytes of the database that hold something."""
        pages = self.db.pragma("page_count") - self.db.pragma("freelist_count")
        return int(pages * self.db.pragma("page_size"))

    # ---- small facts

    def get(self, key: str, default: Any = None) -> Any:
        for _, value, _ in self.meta.scan("key = ?", (key,)):
            return msgspec.json.decode(value)
        return default

    def keep(self, key: str, value: Any) -> None:
        self.meta.put([(key, msgspec.json.encode(value))])

    # ---- subscribers and subscriptions

    def put_subscriber(self, number: int, name: str, settings: bytes) -> None:
        self.subscribers.put([(number, name, settings)])

    def remove_subscriber(self, number: int, owner: str) -> None:
        names = [name for (_, name, *_) in self.subscriptions.scan("subscriber = ?", (number,))]
        self.change(number, owner, [], names)
        self.deliveries.delete_where("subscriber = ?", (number,))
        self.dead.delete_where("subscriber = ?", (number,))
        self.subscribers.delete([(number,)])

    def change(
        self, subscriber: int, owner: str, put: Sequence[tuple[str, str, int, str]], remove: Sequence[str]
    ) -> None:
        """Add or replace (name, where, priority, about) and remove names; the changes are numbered."""
        self.subscriptions.put([(subscriber, *row) for row in put])
        self.subscriptions.delete((subscriber, name) for name in remove)
        names = [row[0] for row in put] + list(remove)
        self.changes.insert((seq, owner, name) for seq, name in enumerate(names, self.changes.next()))

    def subscriptions_of(self, subscriber: int, names: Iterable[str]) -> dict[str, tuple[str, int, str]]:
        """{name: (where, priority, about)} of those that exist."""
        query = "SELECT wanted, priority, about FROM subscriptions WHERE subscriber = ? AND name = ?"
        found = ((name, self.read(query, (subscriber, name))) for name in names)
        return {name: (rows[0][0], rows[0][1], rows[0][2]) for name, rows in found if rows}

    # ---- events and deliveries

    def append(self, bodies: Sequence[bytes], now: int) -> int:
        """Store events; the number of the first."""
        first = self.events.next()
        self.events.insert((seq, now, body) for seq, body in enumerate(bodies, first))
        return first

    def record(self, rows: Iterable[tuple[int, int, int, str, int]], matched: int) -> None:
        """The deliveries (subscriber, level, seq, ids, sent) of all events up to `matched`."""
        self.deliveries.insert(
            (subscriber, TOP - level, seq, ids, sent, 0, None) for subscriber, level, seq, ids, sent in rows
        )
        self.keep("matched", matched)

    def acknowledge(self, keys: Iterable[tuple[int, int, int]]) -> int:
        """Delete deliveries (subscriber, level, seq)."""
        return self.deliveries.delete((subscriber, TOP - level, seq) for subscriber, level, seq in keys)

    def pending_levels(self, subscriber: int, seqs: Sequence[int]) -> list[tuple[int, int]]:
        """(level, seq) of those of the numbers that are pending."""
        query = """SELECT urgency, seq FROM deliveries WHERE subscriber = ?1
                   AND seq IN (SELECT value FROM json_each(?2)) AND urgency IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"""
        rows = self.db.execute(query, (subscriber, msgspec.json.encode(seqs).decode()))
        return [(TOP - urgency, seq) for urgency, seq in rows]

    def fetch(self, subscriber: int, skip: set[int], limit: int) -> tuple[list[Stored], bool]:
        """The next deliveries in order, marked as sent from now on; and whether there are more."""
        query = """SELECT d.*, e.time, e.body FROM deliveries d LEFT JOIN events e ON e.seq = d.seq
                   WHERE d.subscriber = ? ORDER BY d.urgency, d.seq LIMIT ?"""
        rows = list(self.db.execute(query, (subscriber, limit + len(skip) + 1)))
        fresh = [row for row in rows if row[2] not in skip]
        more, fresh = len(fresh) > limit, fresh[:limit]
        self.deliveries.put([(*row[:4], 1, *row[5:7]) for row in fresh if not row[4]])
        found = [
            Stored(seq, TOP - urgency, ids.splitlines(), bool(sent), tries, when or 0, own or body or b"{}")
            for _, urgency, seq, ids, sent, tries, own, _, when, body in fresh
        ]
        return found, more

    def retry(self, subscriber: int, level: int, seq: int, tries: int) -> None:
        for *row, _ in list(self.deliveries.scan(*_one(subscriber, level, seq))):
            self.deliveries.put([(*row[:4], 1, tries, row[6])])

    def bury(self, subscriber: int, keys: Iterable[tuple[int, int]], tries: int, reason: str, most: int) -> int:
        """Move deliveries (level, seq) to the dead letters, of which the newest `most` stay; how many were moved."""
        account = self.ledger.touch("dead")
        before = account.last
        for level, seq in keys:
            for *row, _ in list(self.deliveries.scan(*_one(subscriber, level, seq))):
                body = row[6] if row[6] is not None else self.body(seq)
                account.last += 1
                kept = (account.last, subscriber, level, seq, row[3], tries, reason, time.time_ns() // 1000, body)
                self.dead.insert([kept])
                self.deliveries.delete([tuple(row[:3])])
        over = self.dead.rows() - most
        self.dead.delete_where("number IN (SELECT number FROM dead ORDER BY number LIMIT ?)", (max(over, 0),))
        return account.last - before

    def revive(self, numbers: Sequence[int]) -> list[tuple[int, int, int]]:
        """Make dead letters deliveries again; their (number, subscriber, seq)."""
        revived = []
        for number in numbers:
            for _, subscriber, level, seq, ids, *_, body, _ in list(self.dead.scan("number = ?", (number,))):
                self.deliveries.put([(subscriber, TOP - level, seq, ids, 1, 0, body)])
                self.dead.delete([(number,)])
                revived.append((number, subscriber, seq))
        return revived

    def again(self, subscriber: int, rows: Iterable[tuple[int, int, str]]) -> int:
        """Deliveries (level, seq, ids) of old events, unless they are pending anyway; how many were added."""
        pending = {seq for _, _, seq, *_ in self.deliveries.scan("subscriber = ?", (subscriber,))}
        fresh = [(subscriber, TOP - level, seq, ids, 1, 0, None) for level, seq, ids in rows if seq not in pending]
        self.deliveries.insert(fresh)
        return len(fresh)

    def body(self, seq: int) -> bytes | None:
        for _, _, body, _ in self.events.scan("seq = ?", (seq,)):
            return body  # type: ignore[no-any-return]
        return None

    def events_from(self, seq: int, limit: int) -> list[tuple[int, int, bytes]]:
        query = "SELECT seq, time, body FROM events WHERE seq >= ? ORDER BY seq LIMIT ?"
        return list(self.db.execute(query, (seq, limit)))

    def oldest(self, subscriber: int, count: int) -> list[tuple[int, int]]:
        """(level, seq) of the `count` oldest pending deliveries."""
        query = "SELECT urgency, seq FROM deliveries WHERE subscriber = ? ORDER BY seq LIMIT ?"
        return [(TOP - urgency, seq) for urgency, seq in self.db.execute(query, (subscriber, count))]

    # ---- retention

    def trim(self, before: int, most_bytes: int, batch: int = 20_000) -> int:
        """Let go of events older than `before` (microseconds) or beyond `most_bytes`, but of none that is pending."""
        matched = self.get("matched", 0)
        pinned = [
            seq
            for (number,) in list(self.db.execute("SELECT number FROM subscribers"))
            for (seq,) in self.db.execute(_PINNED, {"n": number})
            if seq is not None
        ]
        last = min([matched, self.events.first() + batch - 1, *(seq - 1 for seq in pinned)])
        excess = self.used() - most_bytes
        gone = 0
        for seq, when, size in self.db.execute(
            "SELECT seq, time, length(body) FROM events WHERE seq <= ? ORDER BY seq", (last,)
        ):
            if when >= before and excess <= 0:
                break
            gone, excess = seq, excess - size - 32
        return self.events.delete_through(gone) if gone else 0


_PINNED = " UNION ALL ".join(
    f"SELECT min(seq) FROM deliveries WHERE subscriber = :n AND urgency = {urgency} AND body IS NULL"
    for urgency in range(LEVELS)
)


def _one(subscriber: int, level: int, seq: int) -> tuple[str, tuple[int, int, int]]:
    return "subscriber = ? AND urgency = ? AND seq = ?", (subscriber, TOP - level, seq)


def _advice(path: Path, problem: str) -> str:
    return (
        f"the store {path} is damaged: {problem}. Nothing was changed. Restore the folder from a backup; "
        f"`sqlite3 {path.name} .recover` in a copy shows what can still be read"
    )
