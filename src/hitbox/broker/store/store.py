"""The broker's durable data in SQLite: subscriptions, events, pending deliveries, dead letters, schema, principals.

    DIR/hitbox.db      write-ahead log, synchronous=FULL: a commit is on disk when it returns
    DIR/beacon         the commit marker: how many commits there were (see commit_marker.py)
    DIR/reserve        reserved disk space, so that deletes work when the disk is full (see disk.py)
    DIR/snapshots/     the index (derived data): read at start, then updated from the table `changes`

This file opens and closes the store, and begins and ends transactions. What is in it is changed by topic:

    store.events       events.py         the log of events, and those that are kept
    store.delayed      delayed.py        events that are not due yet
    store.subscribers  subscribers.py    their settings, owners and subscriptions
    store.deliveries   deliveries.py     what is pending
    store.letters      dead_letters.py   dead letters
    store.retention    retention.py      what is too old or too much
    store.meta         tables.py         values by key; there are the tables, too
    store.space        space.py          sizes, the log of SQLite, a full disk
    store.reader       search.py         what is committed, from any thread

Each has its `table`; the tables without a topic are here: `store.principals`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import apsw
import msgspec

from hitbox.broker.clock import Mark, time
from hitbox.broker.store.checked_table import CheckedTable, Ledger, crc_of
from hitbox.broker.store.commit_marker import FILE_NAME, CommitMarker
from hitbox.broker.store.dead_letters import DeadLetters
from hitbox.broker.store.delayed import StoredDelayed
from hitbox.broker.store.deliveries import StoredDeliveries
from hitbox.broker.store.disk import NO_ROOM, Disk, is_full
from hitbox.broker.store.events import StoredEvents
from hitbox.broker.store.recent import RecentDeliveries
from hitbox.broker.store.retention import Retention
from hitbox.broker.store.search import BUSY_MILLISECONDS, Reader
from hitbox.broker.store.space import SMALL_BYTES, Space
from hitbox.broker.store.subscribers import StoredSubscribers
from hitbox.broker.store.tables import (
    FORMAT,
    HAS_EVENT,
    READABLE,
    TABLES,
    UNUSED,
    WITH_EVENTS,
    Jumps,
    Meta,
    meta_fault,
)  # fmt: skip
from hitbox.protocol.errors import BrokerError, StoreDamaged, StoreFailed, StoreFull

JUMP = 10**9
"""So many numbers a copy leaves out at least, so that its events have others than those that its original got since."""
CONTENT = (apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)
"""SQLite errors that mean damaged content; other I/O errors mean a failing disk."""
NOUNS = {"subscriptions": "subscriptions", "deliveries": "pending deliveries", "dead": "dead letters"}
log = logging.getLogger("hitbox.broker")


class Store:
    """Opened and checked in the caller's thread; afterwards only the writer's thread changes it.

    `problems`: parts that contradict the rest although nothing is lost. They are set aside, and `hitbox admin repair`
    removes them.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | None = None, disk: Disk | None = None):
        self.folder = Path(folder)
        self.disk = disk or Disk()
        self._release_lock = self.disk.lock(self.folder)
        self.path = self.folder / "hitbox.db"
        self.commit_marker: CommitMarker | None = None
        self.problems: list[str] = []
        self._parts = contextlib.ExitStack()
        self.db = None  # type: ignore[assignment]
        try:
            self._open(max_bytes)
        except (apsw.Error, StoreDamaged, OSError, UnicodeDecodeError) as problem:
            raise self._cannot_open(problem) from problem
        except BaseException:
            self._release()
            raise

    db: apsw.Connection

    def _cannot_open(self, problem: Exception) -> BrokerError:
        full = isinstance(problem, OSError) and problem.errno in NO_ROOM
        failed = isinstance(problem, OSError)
        if isinstance(problem, apsw.Error) and self.db is not None:
            full = is_full(problem, self.db) or (isinstance(problem, apsw.IOError) and self._little_space())
            failed = isinstance(problem, apsw.IOError) and getattr(problem, "extendedresult", 0) not in CONTENT
        self._release()
        if full:
            return StoreFull(f"the store {self.path} cannot be opened: the disk is full ({problem}); make room")
        if failed:
            return StoreFailed(f"the store {self.path} cannot be opened: {problem}")
        return StoreDamaged(
            f"the store {self.path} is damaged: {problem}. Nothing was changed. Restore the folder from a backup, or "
            f"run `hitbox admin repair {self.folder}`: it keeps a copy, saves what can be read and lists what is lost"
        )

    def _little_space(self) -> bool:
        """Whether the disk is so full that SQLite cannot create its log index, which fails with various errors."""
        return self.disk.space(self.folder)[1] < SMALL_BYTES

    def _use_reserve(self) -> None:
        """Release the reserve before opening, if the disk is too full even for reading."""
        path = self.folder / "reserve"
        if self._little_space() and self.disk.size(path) > 0:
            file = self.disk.open(path)
            file.resize(0)
            file.close()

    def _open(self, max_bytes: int | None) -> None:
        self._use_reserve()
        existed = self.disk.size(self.path) > 0
        self._connect(existed)
        self.db.execute("BEGIN IMMEDIATE")
        self._make_tables()
        self.db.execute("COMMIT")
        self.space = Space(self.disk, self.folder, self.db)
        self._parts.callback(self.space.reserve.close)
        self._make_topics()
        self._check(existed)
        self.db.set_wal_hook(self.space.count_pages)
        if self.disk.shared:
            self.reader.separate()
            self._parts.callback(self.reader.close)
        self.space.set_max_bytes(max_bytes)
        self.has_room = self.space.restore_reserve()

    def _connect(self, existed: bool) -> None:
        self.db = apsw.Connection(str(self.path), vfs=self.disk.vfs)
        self._parts.callback(self.db.close)
        if existed:
            check_format(self.db, self.folder)
        self.db.set_busy_timeout(BUSY_MILLISECONDS)
        self.disk.protect(self.path)
        if not self.disk.shared:
            self.db.pragma("locking_mode", "exclusive")
        if not existed:  # so that deleted pages can be returned to a full disk; this writes
            self.db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0", "cache_size=-65536"):
            self.db.execute(f"PRAGMA {pragma}")
        if existed:
            found = [row[0] for row in self.db.execute("PRAGMA integrity_check(5)")]
            if found != ["ok"]:
                raise StoreDamaged("; ".join(found))

    def _make_tables(self) -> None:
        self.ledger = Ledger(self.db)
        self.tables = {name: CheckedTable(self.db, self.ledger, name, columns) for name, columns in TABLES.items()}
        self.principals, self.tokens, self.log = (self.tables[name] for name in ("principals", "tokens", "log"))
        self.db.execute("CREATE INDEX IF NOT EXISTS delayed_by_due ON delayed(due, number, principal)")
        self.db.execute("CREATE INDEX IF NOT EXISTS dead_by_subscriber ON dead(subscriber, number)")
        self.db.execute("CREATE INDEX IF NOT EXISTS deliveries_of_kept ON deliveries(seq) WHERE kept = 1")

    def _make_topics(self) -> None:
        db, tables = self.db, self.tables
        self.reader = reader = Reader(db, self.path)
        self.meta = meta = Meta(tables["meta"])
        self.events = events = StoredEvents(db, reader, tables, meta, self.space.page)
        self.delayed = StoredDelayed(reader, tables["delayed"], events)
        self.letters = letters = DeadLetters(db, tables["dead"])
        self.subscribers = StoredSubscribers(db, reader, tables, letters)
        self.recent = RecentDeliveries(self.log)
        self.deliveries = StoredDeliveries(
            db, tables["deliveries"], self.recent, meta, events, self.subscribers, letters
        )
        self.retention = Retention(db, meta, self.space, self.deliveries)
        self._tallies = (self.deliveries.bytes, self.delayed.counts, letters.counts, letters.bytes, events.totals)

    def _check(self, existed: bool) -> None:
        for problem in self.check():
            raise StoreDamaged(problem)
        if not existed or not self.ledger.entry("commits").rows:
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # the tables: no transaction answers for them
            with self.transaction():
                self.meta.put("format", FORMAT)
                self.meta.put("incarnation", secrets.token_hex(8))
        self.problems += self.inconsistencies()
        for text in self.problems:
            log.warning("%s: %s; set aside, `hitbox admin repair %s` removes it", self.path, text, self.folder)
        for topic in (self.events, self.delayed, self.deliveries, self.letters):
            topic.load()

    def check(self) -> Iterator[str]:
        """Read everything; yields what is damaged or lost."""
        yield from self._check_commit_marker(self.ledger.entry("commits").rows)
        for table in self.tables.values():
            yield from table.check(self._jumps() if table is self.events.table else ())
        for key, value, _ in self.meta.table.scan():
            if fault := meta_fault(key, value):
                yield f"table meta: the value of {key!r} cannot be read ({fault})"
        self.recent.load()
        yield from self._check_numbers()

    def _jumps(self) -> Jumps:
        try:
            return msgspec.convert(self.meta.get("jumps", []), Jumps)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []  # `check` reports it

    @property
    def incarnation(self) -> str:
        """Which history of events this is: the numbers of two stores mean the same events if this is the same."""
        found: str = self.meta.get("incarnation", "")
        return found

    def mark_as_copy(self) -> None:
        """What follows in this store is another history than that of its original: see `begin_history`."""
        with self.transaction():
            self.meta.put("copied", True)

    def clock_mark(self) -> Mark | None:
        """What the broker's clock told once."""
        found = self.meta.get("clock")
        return None if found is None else Mark(*found)

    def begin_history(self) -> None:
        """In a copy, before a broker uses it: begin a history of its own. Its original, or another copy, may have
        given the next numbers to other events, so the copy leaves numbers out. By the clock: two copies of one backup
        begin at different numbers."""
        if self.incarnation and not self.meta.get("copied", False):
            return
        with self.transaction():
            events = self.ledger.changed_entry("events")
            last, following = events.last, max(time.time_ns() // 1000, events.last + JUMP)
            jumps = [one for one in self._jumps() if one[1] > events.first]
            self.meta.put("jumps", [*jumps, (last, following)])
            events.last = following - 1
            for name in ("delayed", "dead"):  # callers name these by their numbers, too
                entry = self.ledger.changed_entry(name)
                entry.last = max(following - 1, entry.last + JUMP)
            self.meta.put("incarnation", secrets.token_hex(8))
            self.meta.put("copied", False)

    def _check_numbers(self) -> Iterator[str]:
        """Check the counters: a wrong one would reuse a number, or skip events that are not matched."""
        matched, last = self.meta.get("matched", 0), self.events.table.next() - 1
        if matched > last:
            yield f"events are matched up to {matched}, but the last event is {last}"
        ((settled,),) = self.db.execute("SELECT max(seq) FROM deliveries")
        newest = max([settled or 0, *(row[2] for row in self.recent.all())])
        if newest > matched:
            yield f"events are matched up to {matched}, but there is a delivery of event {newest}"
        for number, rows in groupby(self.recent.all(), key=lambda row: row[0]):
            seqs = [row[2] for row in rows]
            if len(self.deliveries.pending_levels(number, seqs)) > len(seqs):
                yield f"deliveries of subscriber {number} are in table log and in table deliveries"
        for table in (self.letters.table, self.delayed.table):
            ((highest,),) = self.db.execute(f"SELECT max(number) FROM {table.name}")
            if highest is not None and highest >= table.next():
                last = table.next() - 1
                yield f"table {table.name} contains number {highest}, but the ledger says that {last} is the last"

    def _check_commit_marker(self, known: int) -> Iterator[str]:
        path = self.folder / FILE_NAME
        if known and self.disk.size(path) <= 0:
            yield f"the store has {known} commits, but its commit marker {path} is missing"
            return
        self.commit_marker = CommitMarker(path, self.disk)
        self._parts.callback(self.commit_marker.close)
        try:
            promised = self.commit_marker.read()
        except StoreDamaged as problem:
            if known:
                yield str(problem)
                return
            promised = None  # the very first write was cut short
        if promised is None:
            if known:
                yield f"the store has {known} commits, but its commit marker {path} is empty"
            else:
                self.commit_marker.begin()
        elif promised > known:
            yield f"{promised} commits were made, but the store has only the first {known}: the last ones are lost"

    def inconsistencies(self) -> list[str]:
        """Rows that are not damaged, but belong to no subscriber or event, or cannot be used."""
        found = []
        known, first = {number for number, *_ in self.subscribers.table.scan()}, self.events.table.first()
        for name in ("subscriptions", "deliveries", "dead"):
            query = f"SELECT subscriber FROM {name} WHERE subscriber NOT IN (SELECT number FROM subscribers)"
            strangers = [number for (number,) in self.db.execute(query)]
            if name == "deliveries":
                strangers += [row[0] for row in self.recent.all() if row[0] not in known]
            if strangers:
                such = f"such as number {min(strangers)}"
                found.append(f"{len(strangers)} {NOUNS[name]} of subscribers that do not exist ({such})")
        query = f"SELECT d.seq FROM {WITH_EVENTS} WHERE NOT {HAS_EVENT} AND (d.seq < ? OR d.kept)"
        gone = [seq for (seq,) in self.db.execute(query, (first,))]
        gone += [row[2] for row in self.recent.all() if row[2] < first]
        if gone:
            found.append(f"{len(gone)} pending deliveries of events that are gone (such as event {min(gone)})")
        failed = msgspec.json.encode(self.meta.get("failed", [])).decode()
        for query, what in (
            (f"event) FROM kept WHERE {UNUSED} AND event NOT IN (SELECT value FROM json_each(:failed))",
             "events that are kept for no delivery (such as event {})"),
            ("""name) FROM suspended s WHERE NOT EXISTS (
                SELECT 1 FROM subscriptions t WHERE t.subscriber = s.subscriber AND t.name = s.name)""",
             "suspensions of subscriptions that do not exist (such as {!r})"),
            (f"name) FROM subscriptions WHERE NOT ({READABLE})",
             "subscriptions with a value of the wrong kind (such as {!r})"),
        ):  # fmt: skip
            ((count, example),) = self.db.execute(f"SELECT count(*), min({query}", {"failed": failed})
            if count:
                found.append(f"{count} {what.format(example)}")
        return found

    # ---- transactions, called by the writer

    def begin(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.ledger.refresh()

    def commit(self) -> None:
        """Make durable what was done since `begin`, or raise. Failures after that go to `maintenance_errors`."""
        self.recent.flush()
        commits = self.ledger.flush()
        self.space.check_room()
        self.db.execute("COMMIT")
        self.deliveries.committed()
        for tally in self._tallies:
            tally.commit()
        with self.space.maintenance("commit marker"):
            if self.commit_marker is not None:
                self.commit_marker.write(commits)
        self.space.committed()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction outside of the writer: before the broker starts, or in a command."""
        try:
            self.begin()
            yield
            self.commit()
        except (apsw.Error, OSError) as problem:
            self._try_rollback()
            kind = StoreFull if self.is_full(problem) else StoreFailed
            raise kind(f"the store {self.path} cannot be written: {problem!r}") from problem
        except BaseException:
            self._try_rollback()
            raise

    def _try_rollback(self) -> None:
        """Roll back after an error. A second error is ignored: `begin` reads the ledger again."""
        with contextlib.suppress(apsw.Error, OSError):
            self.rollback()

    def rollback(self) -> None:
        """Undo what was not committed."""
        self.deliveries.rolled_back()
        for tally in self._tallies:
            tally.more.clear()
        self.letters.forget_owners()
        try:
            if self.db.in_transaction:  # after some errors SQLite has rolled back by itself
                self.db.execute("ROLLBACK")
        finally:
            self.ledger.reload()

    def is_full(self, problem: BaseException) -> bool:
        return is_full(problem, self.db)

    def remove_subscriber(self, number: int, owner: str) -> None:
        """Remove a subscriber with all that is stored for it."""
        if self.subscribers.existing([number]):
            self.letters.delete("subscriber = ?", (number,))
            self.letters.hand_over(number, "")
            self.deliveries.forget(number)
            self.subscribers.remove(number, owner)

    def close(self) -> None:
        try:
            if self.commit_marker is not None:
                with self.space.maintenance("commit marker"):
                    self.commit_marker.write(self.ledger.entry("commits").rows, sync=True)
        finally:
            self._release()

    def _release(self) -> None:
        with contextlib.suppress(apsw.Error, OSError):
            self._parts.close()
        self._release_lock()


_TABLES = """
    SELECT count(*), count((SELECT 1 FROM pragma_table_info(made.name) WHERE name = 'crc' AND type = ''))
    FROM sqlite_schema AS made WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"""
"""The number of tables, and of those with checksums as a store has them."""


def check_format(db: apsw.Connection, folder: Path) -> None:
    """Refuse another program's database, and a store of another format, before anything else reads or changes it. Every
    format has this row, and tables with checksums."""
    try:
        ((tables, ours),) = db.execute(_TABLES)
        if tables and not ours:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            raise StoreFailed(
                f"{folder / 'hitbox.db'} is the database of another program: name another folder. Nothing was changed"
            )
        rows = list(db.execute("SELECT * FROM meta WHERE key = 'format'"))
    except (apsw.Error, UnicodeDecodeError):
        return  # a new store, or a damaged one, which the other checks report
    for *row, crc in rows:
        if len(row) == 2 and crc == crc_of(row) and not meta_fault(*row):
            version = msgspec.json.decode(row[1])
            if version != FORMAT:
                db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                raise StoreFailed(
                    f"the store in {folder} has format {version}, and this version of hitbox reads format {FORMAT}: "
                    "use the version that wrote it, or a newer one. Nothing was changed"
                )


def sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
