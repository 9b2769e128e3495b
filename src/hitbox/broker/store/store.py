"""The broker's durable data in SQLite: subscriptions, events, pending deliveries, dead letters, schema, principals.

    DIR/hitbox.db      write-ahead log, synchronous=FULL: a commit is on disk when it returns
    DIR/beacon         the commit marker: how many commits there were (see commit_marker.py)
    DIR/reserve        reserved disk space, so that deletes work when the disk is full (see disk.py)
    DIR/snapshots/     the index (derived data): read at start, then updated from the table `changes`

    meta           key                                    value
    subscribers    number                                 name, settings
    subscriptions  subscriber, name                       where, priority, about
    changes        seq                                    subscriber's name, name: changed since the last snapshot
    events         seq                                    time, principal, body
    delayed        number                                 due, principal, body: becomes an event when it is due
    losses         subscriber                             dropped, expired, dead: how many of its deliveries, ever
    log            seq                                    steps: what happened to recent deliveries (see recent.py)
    kept           event                                  time, body: retention has passed it, but it is still needed
    deliveries     subscriber, urgency (9-level), seq     ids, sent, tries, kept (whether its event is in that table)
    dead           number                                 subscriber, level, seq, ids, tries, reason, time, body
    principals     name                                   settings: roles, names, predicates
    tokens         id                                     principal, hash of the secret, settings: roles, expiry
    owners         subscriber                             principal
    suspended      subscriber, name                       time, reason: this subscription is set aside

An event is stored first and matched afterwards. `matched` in meta is the number of the last matched event; it is
written together with the deliveries, so after a crash the rest is matched again. Deliveries are written to the log
first. Those that are not acknowledged soon become rows of their table. An acknowledgement is written to the log, or
deletes the row. Deliveries are read in order: the most urgent first, then by age.

Retention removes the oldest events, so that `events` never has a gap. One that is still pending for somebody moves to
`kept`: once, however many wait for it. It is deleted there with the last of its deliveries.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import apsw
import msgspec

from hitbox.broker.clock import Mark, clock, time
from hitbox.broker.events.published_event import TTL_BYTES, expires_at
from hitbox.broker.store.checked_table import CheckedTable, Columns, Ledger, Name, Number, Row, crc_of
from hitbox.broker.store.commit_marker import FILE_NAME, CommitMarker
from hitbox.broker.store.dead_letters import DeadLetters
from hitbox.broker.store.disk import NO_ROOM, Disk, Reserve, is_full
from hitbox.broker.store.recent import SETTLE_ROWS, RecentDeliveries, RecentDelivery, row_of
from hitbox.broker.store.search import reading, search
from hitbox.broker.store.tally import Tally
from hitbox.encoding.arrays import LEVELS
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.protocol.errors import BrokerError, StoreDamaged, StoreFailed, StoreFull

FORMAT = 4
CHECKPOINT_BYTES = 16 * 2**20
SMALL_BYTES = 128 * 1024
MOST_PAGES = 2**32 - 2
ROW_BYTES = 64
"""Of a row of table `deliveries`, about, without the names."""
EVENT_BYTES = 64
"""Of a row of table `events`, about, without its text."""
KEPT_ROWS = 5_000
KEPT_BYTES = 4 * 2**20
"""Pending deliveries, and bytes of their events, that one step of retention moves; more if a single event has more."""
STEP = 10_000_000
"""Microseconds; what is longer between two steps of retention is a jump of the clock, or the broker was down."""
COMMIT_PAGES = 4
"""Pages that are in use in a transaction, so that only its end writes them to the log; more than there are."""
FRAME_BYTES = 24
"""Before each page in the log."""
MOVED_PAGES = 3
"""Pages that SQLite writes to its log to move one page: the page itself, and those that refer to it."""
NEVER = 2**62
BUSY_MILLISECONDS = 5_000
TOP = LEVELS - 1
Level = Annotated[int, msgspec.Meta(ge=0, le=TOP)]
Flag = Literal[0, 1]
Text = bytes | None
Jumps = list[tuple[Number, Number]]
"""Where numbers of events were left out: (the last before, the next one)."""
JUMP = 10**9
"""So many numbers a copy leaves out at least, so that its events have others than those that its original got since."""
TABLES = {  # Any: if it is wrong, only one subscriber or subscription is set aside
    "meta": Columns({"key": str, "value": bytes}),
    "subscribers": Columns({"number": Number, "name": Name, "settings": Any}),
    "subscriptions": Columns({
        "subscriber": Number, "name": Name, "wanted": Any, "priority": Any, "about": Any,
    }, keys=2),
    "changes": Columns({"seq": Number, "owner": str, "name": str}),
    "events": Columns({"seq": Number, "time": Number, "principal": str, "body": bytes}, bulk=True),
    "deliveries": Columns({
        "subscriber": Number, "urgency": Level, "seq": Number,
        "ids": str, "sent": Flag, "tries": Number, "kept": Flag,
    }, keys=3, bulk=True),
    "dead": Columns({
        "number": Number, "subscriber": Number, "level": Level, "seq": Number,
        "ids": str, "tries": Number, "reason": str, "time": Number, "body": Text,
    }),
    "principals": Columns({"name": Name, "settings": bytes}),
    "tokens": Columns({"id": Name, "principal": Name, "hash": str, "settings": bytes}),
    "owners": Columns({"subscriber": Number, "principal": Name}),
    "log": Columns({"seq": Number, "steps": bytes}),
    "delayed": Columns({"number": Number, "due": Number, "principal": str, "body": bytes}, bulk=True),
    "losses": Columns({"subscriber": Number, "dropped": Number, "expired": Number, "dead": Number}),
    "kept": Columns({"event": Number, "time": Number, "body": bytes}, bulk=True),
    "suspended": Columns({"subscriber": Number, "name": Name, "time": Number, "reason": str}, keys=2),
}  # fmt: skip
READABLE = f"""typeof(wanted) = 'text' AND typeof(about) = 'text'
               AND typeof(priority) = 'integer' AND priority BETWEEN 0 AND {TOP}"""
"""SQL condition: the columns of the subscription have valid types."""
META_TYPES: dict[str, Any] = {
    "format": int, "incarnation": Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")], "copied": bool,
    "clock": tuple[str, int, int], "jumps": Jumps, "matched": Number, "failed": list[Number], "protected": bool,
    "ahead": tuple[Number, Number, Number], "snapshot": dict[str, Number] | None, "schema": list[dict[str, Any]],
}  # fmt: skip
"""Types of the values in table `meta`, by key."""
CONTENT = (apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)
"""SQLite errors that mean damaged content; other I/O errors mean a failing disk."""
NOUNS = {"subscriptions": "subscriptions", "deliveries": "pending deliveries", "dead": "dead letters"}
log = logging.getLogger("hitbox.broker")


class StoredChange(NamedTuple):
    """A change of the subscriptions of one subscriber: `put` adds or replaces (name, where, priority, about). With
    `settings` the subscriber itself is stored, too, and belongs to the principal `claimed`, unless that is empty."""

    subscriber: int
    owner: str
    put: Sequence[tuple[str, str, int, str]]
    remove: Sequence[str]
    settings: bytes | None = None
    claimed: str = ""


class StoredDelivery(NamedTuple):
    """A delivery as it comes back from the store."""

    seq: int
    level: int
    ids: list[str]
    sent: bool
    tries: int
    time: int
    body: bytes


class Trimmed(NamedTuple):
    """How many events retention removed from the log, and whether it should go on."""

    events: int
    more: bool


class Store:
    """Opened and checked in the caller's thread; afterwards only the writer's thread changes it.

    `problems`: parts that contradict the rest although nothing is lost. They are set aside, and `hitbox admin repair`
    removes them. `maintenance_errors`: what failed after a commit and will be tried again, {name: reason}.

    Of what is committed, from any thread: `pending_bytes` of the events and names of each subscriber's pending
    deliveries, `kept_bytes` of table `kept`, `event_bytes` that the log of events takes, and the number of events that
    retention has `trimmed`.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | None = None, disk: Disk | None = None):
        self.folder = Path(folder)
        self.disk = disk or Disk()
        self._release_lock = self.disk.lock(self.folder)
        self.path = self.folder / "hitbox.db"
        self.commit_marker: CommitMarker | None = None
        self.reserve: Reserve | None = None
        self.db = self._reader = None  # type: ignore[assignment]
        self.problems: list[str] = []
        self._pending_bytes, self._delayed_of = Tally[int](), Tally[str]()
        self.kept_bytes = self.event_bytes = self.trimmed = 0
        self._more_kept = self._more_events = self._more_trimmed = 0
        self._span = NEVER  # events that the latest step of retention could look at
        self.maintenance_errors: dict[str, str] = {}
        try:
            self._open(max_bytes)
        except (apsw.Error, StoreDamaged, OSError, UnicodeDecodeError) as problem:
            raise self._cannot_open(problem) from problem
        except BaseException:
            self._release()
            raise

    db: apsw.Connection
    _reader: apsw.Connection

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
        self.db = apsw.Connection(str(self.path), vfs=self.disk.vfs)
        self._reader = self.db
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
        self.db.execute("BEGIN IMMEDIATE")
        self.ledger = Ledger(self.db)
        self.tables = {name: CheckedTable(self.db, self.ledger, name, columns) for name, columns in TABLES.items()}
        self.meta, self.subscribers, self.subscriptions = (self.tables[n] for n in list(TABLES)[:3])
        self.changes, self.events, self.deliveries, self.dead = (self.tables[n] for n in list(TABLES)[3:7])
        self.principals, self.tokens, self.owners = (self.tables[n] for n in list(TABLES)[7:10])
        self.log, self.delayed, self._losses, self.kept, self.suspended = (self.tables[n] for n in list(TABLES)[10:])
        self.db.execute("CREATE INDEX IF NOT EXISTS delayed_by_due ON delayed(due, number, principal)")
        self.db.execute("CREATE INDEX IF NOT EXISTS dead_by_subscriber ON dead(subscriber, number)")
        self.db.execute("CREATE INDEX IF NOT EXISTS deliveries_of_kept ON deliveries(seq) WHERE kept = 1")
        self.recent = RecentDeliveries(self.log)
        self.letters = DeadLetters(self.db, self.dead)
        self._tallies = (self._pending_bytes, self._delayed_of, self.letters.counts, self.letters.bytes)
        self._settled_expiry: int | None = None  # when the first expires that was settled during a search; see expired
        self._committed_expiry: int | None = None  # the same at the last commit, for a rollback
        self.db.execute("COMMIT")
        self._pages = 0
        self._page = int(self.db.pragma("page_size"))
        self.reserve = Reserve(self.disk, self.folder / "reserve")
        self._checkpoint_bytes = self._next_checkpoint = min(CHECKPOINT_BYTES, self.reserve.bytes // 2)
        self._check(existed)
        self.db.set_wal_hook(self._count_pages)
        self._reading = threading.Lock()
        if self.disk.shared:
            self._reader = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
            self._reader.set_busy_timeout(BUSY_MILLISECONDS)
        self.set_max_bytes(max_bytes)
        self.has_room = self.restore_reserve()

    def set_max_bytes(self, max_bytes: int | None) -> None:
        """Set the maximum size of the database; None: no limit."""
        self._max_bytes = max_bytes
        self._limit = MOST_PAGES if max_bytes is None else min(max(max_bytes // self._page, 1), MOST_PAGES)
        self.db.pragma("max_page_count", self._limit)

    def _check(self, existed: bool) -> None:
        for problem in self.check():
            raise StoreDamaged(problem)
        if not existed or not self.ledger.entry("commits").rows:
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # the tables: no transaction answers for them
            with self.transaction():
                self.put_meta("format", FORMAT)
                self.put_meta("incarnation", secrets.token_hex(8))
        self.problems += self.inconsistencies()
        for text in self.problems:
            log.warning("%s: %s; set aside, `hitbox admin repair %s` removes it", self.path, text, self.folder)
        self._count_bytes()

    def _count_bytes(self) -> None:
        """Count the bytes of what is pending and of what is kept, at a start."""
        query = f"""SELECT d.subscriber, sum(length(d.ids) + length({_BODY})) FROM {_WITH_EVENTS}
                    WHERE {_HAS_EVENT} GROUP BY d.subscriber"""
        total = Counter(dict(self.db.execute(query)))
        total.update(self._bytes_of(list(map(row_of, self.recent.all()))))
        self._pending_bytes.load(total)
        self.letters.load()
        query = "SELECT principal, count(*) FROM delayed GROUP BY principal"
        self._delayed_of.load(dict(self.db.execute(query)))
        ((self.kept_bytes,),) = self.db.execute("SELECT ifnull(sum(length(body)), 0) FROM kept")
        self.event_bytes = self._event_bytes(NEVER)

    def _event_bytes(self, last: int) -> int:
        """What the events up to a number take; see `_size`."""
        size = "iif(length(body) > :page / 2, (length(body) + :page - 5) / (:page - 4) * :page, length(body) + :row)"
        query = f"SELECT ifnull(sum({size}), 0) FROM events WHERE seq <= :last"
        ((found,),) = self.db.execute(query, {"page": self._page, "row": EVENT_BYTES, "last": last})
        return int(found)

    def _size(self, length: int) -> int:
        """About how much an event takes whose text has so many bytes: a long one has pages of its own."""
        page = self._page
        return (length + page - 5) // (page - 4) * page if length > page // 2 else length + EVENT_BYTES

    def check(self) -> Iterator[str]:
        """Read everything; yields what is damaged or lost."""
        yield from self._check_commit_marker(self.ledger.entry("commits").rows)
        for table in self.tables.values():
            yield from table.check(self._jumps() if table is self.events else ())
        for key, value, _ in self.meta.scan():
            if fault := meta_fault(key, value):
                yield f"table meta: the value of {key!r} cannot be read ({fault})"
        self.recent.load()
        yield from self._check_numbers()

    def _jumps(self) -> Jumps:
        try:
            return msgspec.convert(self.get_meta("jumps", []), Jumps)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []  # `check` reports it

    @property
    def incarnation(self) -> str:
        """Which history of events this is: the numbers of two stores mean the same events if this is the same."""
        found: str = self.get_meta("incarnation", "")
        return found

    def mark_as_copy(self) -> None:
        """What follows in this store is another history than that of its original: see `begin_history`."""
        with self.transaction():
            self.put_meta("copied", True)

    def clock_mark(self) -> Mark | None:
        """What the broker's clock told once."""
        found = self.get_meta("clock")
        return None if found is None else Mark(*found)

    def newest_time(self) -> int:
        """Of an event; in microseconds since 1970. 0: there is none."""
        return max((int(when) for (when,) in self.read("SELECT time FROM events ORDER BY seq DESC LIMIT 1")), default=0)

    def begin_history(self) -> None:
        """In a copy, before a broker uses it: begin a history of its own. Its original, or another copy, may have
        given the next numbers to other events, so the copy leaves numbers out. By the clock: two copies of one backup
        begin at different numbers."""
        if self.incarnation and not self.get_meta("copied", False):
            return
        with self.transaction():
            events = self.ledger.changed_entry("events")
            last, following = events.last, max(time.time_ns() // 1000, events.last + JUMP)
            jumps = [one for one in self._jumps() if one[1] > events.first]
            self.put_meta("jumps", [*jumps, (last, following)])
            events.last = following - 1
            for name in ("delayed", "dead"):  # callers name these by their numbers, too
                entry = self.ledger.changed_entry(name)
                entry.last = max(following - 1, entry.last + JUMP)
            self.put_meta("incarnation", secrets.token_hex(8))
            self.put_meta("copied", False)

    def _check_numbers(self) -> Iterator[str]:
        """Check the counters: a wrong one would reuse a number, or skip events that are not matched."""
        matched, last = self.get_meta("matched", 0), self.events.next() - 1
        if matched > last:
            yield f"events are matched up to {matched}, but the last event is {last}"
        ((settled,),) = self.db.execute("SELECT max(seq) FROM deliveries")
        newest = max([settled or 0, *(row[2] for row in self.recent.all())])
        if newest > matched:
            yield f"events are matched up to {matched}, but there is a delivery of event {newest}"
        for number, rows in groupby(self.recent.all(), key=lambda row: row[0]):
            seqs = [row[2] for row in rows]
            if len(self.pending_levels(number, seqs)) > len(seqs):
                yield f"deliveries of subscriber {number} are in table log and in table deliveries"
        for table in (self.dead, self.delayed):
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
        known, first = {number for number, *_ in self.subscribers.scan()}, self.events.first()
        for name in ("subscriptions", "deliveries", "dead"):
            query = f"SELECT subscriber FROM {name} WHERE subscriber NOT IN (SELECT number FROM subscribers)"
            strangers = [number for (number,) in self.db.execute(query)]
            if name == "deliveries":
                strangers += [row[0] for row in self.recent.all() if row[0] not in known]
            if strangers:
                such = f"such as number {min(strangers)}"
                found.append(f"{len(strangers)} {NOUNS[name]} of subscribers that do not exist ({such})")
        query = f"SELECT d.seq FROM {_WITH_EVENTS} WHERE NOT {_HAS_EVENT} AND (d.seq < ? OR d.kept)"
        gone = [seq for (seq,) in self.db.execute(query, (first,))]
        gone += [row[2] for row in self.recent.all() if row[2] < first]
        if gone:
            found.append(f"{len(gone)} pending deliveries of events that are gone (such as event {min(gone)})")
        query = (
            f"SELECT count(*), min(event) FROM kept WHERE {_UNUSED} AND event NOT IN (SELECT value FROM json_each(?))"
        )
        failed = msgspec.json.encode(self.get_meta("failed", [])).decode()
        for count, event in self.db.execute(query, (failed,)):
            if count:
                found.append(f"{count} events that are kept for no delivery (such as event {event})")
        query = """SELECT count(*), min(name) FROM suspended s WHERE NOT EXISTS (
                   SELECT 1 FROM subscriptions t WHERE t.subscriber = s.subscriber AND t.name = s.name)"""
        for count, name in self.db.execute(query):
            if count:
                found.append(f"{count} suspensions of subscriptions that do not exist (such as {name!r})")
        for count, name in self.db.execute(f"SELECT count(*), min(name) FROM subscriptions WHERE NOT ({READABLE})"):
            if count:
                found.append(f"{count} subscriptions with a value of the wrong kind (such as {name!r})")
        return found

    # ---- transactions, called by the writer

    def begin(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.ledger.refresh()

    def commit(self) -> None:
        """Make durable what was done since `begin`, or raise. Failures after that go to `maintenance_errors`."""
        self.recent.flush()
        commits = self.ledger.flush()
        self._check_room()
        self.db.execute("COMMIT")
        self.recent.committed()
        self._committed_expiry = self._settled_expiry
        self._add_totals()
        with self._maintenance("commit marker"):
            if self.commit_marker is not None:
                self.commit_marker.write(commits)
        if self._pages * self._page > self._next_checkpoint:
            with self._maintenance("checkpoint"):
                self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            # After a failure: do not try again at every commit.
            late = self._pages * self._page if "checkpoint" in self.maintenance_errors else 0
            self._next_checkpoint = self._checkpoint_bytes + late
            self._pages = 0

    def _add_totals(self) -> None:
        """What the transaction changed of the numbers that other threads read."""
        for tally in self._tallies:
            tally.commit()
        self.kept_bytes += self._more_kept
        self.event_bytes += self._more_events
        self.trimmed += self._more_trimmed
        self._clear_totals()

    def _clear_totals(self) -> None:
        for tally in self._tallies:
            tally.more.clear()
        self._more_kept = self._more_events = self._more_trimmed = 0

    def _check_room(self) -> None:
        """Raise FullError if what is about to be committed could not be copied from SQLite's log into the database
        later, even with the reserve. Such a log would never be emptied, so nothing could be written any more."""
        assert self.reserve is not None
        growth = self.db.pragma("page_count") * self._page - self.disk.size(self.path)
        if growth <= max(self.reserve.room(), 0):
            return  # whatever the log takes of the disk, it does not take the reserve
        self.db.cache_flush()  # the log takes more than the pages that are new: all that were changed
        room = self.disk.space(self.folder)[1] + self.reserve.room()
        if growth + COMMIT_PAGES * self._page > room:
            raise apsw.FullError(f"{growth:,} bytes more would not fit")

    @contextlib.contextmanager
    def _maintenance(self, name: str) -> Iterator[None]:
        """Run work that may fail without harm and is tried again later."""
        try:
            yield
        except (apsw.Error, OSError) as problem:
            if name not in self.maintenance_errors:
                log.warning("%s: the %s could not be written: %s", self.folder, name, problem)
            self.maintenance_errors[name] = str(problem)
        else:
            self.maintenance_errors.pop(name, None)

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
        self.recent.rollback()
        self._clear_totals()
        self.letters.forget_owners()
        self._settled_expiry = self._committed_expiry
        try:
            if self.db.in_transaction:  # after some errors SQLite has rolled back by itself
                self.db.execute("ROLLBACK")
        finally:
            self.ledger.reload()

    # ---- a full disk

    def release(self, all: bool = False) -> None:
        """Release the reserve: half of it for mandatory writes, all of it for deletes."""
        assert self.reserve is not None
        with self._maintenance("reserve"):
            self.reserve.release(all)
        self.db.pragma("max_page_count", min(self._limit + self._limit // 16 + 8, MOST_PAGES))
        self._shrink()
        if "checkpoint" in self.maintenance_errors and not all:  # it returns more than it takes, but needs it first
            with self._maintenance("reserve"):
                self.reserve.release(all=True)
            self._shrink()

    def restore_reserve(self) -> bool:
        """Allocate the reserve again; returns whether there is space for all writes again."""
        assert self.reserve is not None
        while not self.reserve.allocate(max(self._checkpoint_bytes - self.sizes()["store_log"], 0)):
            with self._maintenance("reserve"):
                self.reserve.release()
            if not self._shrink():
                return False
        if "checkpoint" in self.maintenance_errors:
            self._shrink()
            if "checkpoint" in self.maintenance_errors:
                return False
        pages = self.db.pragma("page_count") - self.db.pragma("freelist_count")
        if pages > self._limit - self._limit // 16:
            return False
        self.db.pragma("max_page_count", self._limit)
        return True

    def _shrink(self) -> bool:
        """Return the space of the log and of some deleted pages to the disk; returns whether there may be more."""
        assert self.reserve is not None
        free = self.db.pragma("freelist_count")
        with self._maintenance("checkpoint"):
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # first: the rest needs room in the log
            room = (self.disk.space(self.folder)[1] // (self._page + FRAME_BYTES) - COMMIT_PAGES) // MOVED_PAGES
            if (some := min(max(self.reserve.bytes // 8 // self._page, 16), room, free)) > 0:
                list(self.db.execute(f"PRAGMA incremental_vacuum({some})"))
                self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return bool(self.db.pragma("freelist_count") < free)

    def is_full(self, problem: BaseException) -> bool:
        return is_full(problem, self.db)

    def what_is_full(self) -> str:
        """Whichever is nearer: the largest size that the settings allow, or the end of the disk."""
        if self._max_bytes is None or self._max_bytes - self.used_bytes() >= self.disk.space(self.folder)[1]:
            return "the disk is full"
        return (
            f"the store has reached the setting max_store_bytes ({self._max_bytes}), though the disk has room: raise "
            "it, or acknowledge or remove what is pending"
        )

    def read(self, query: str, values: Row | dict[str, Any] = ()) -> list[Row]:
        """Read committed data; from any thread."""
        with self._reading:
            return list(self._reader.execute(query, values))

    def search(self, query: str, values: dict[str, Any]) -> list[Row]:
        """Read with a query that may look at any number of rows: nobody else waits for it, and it ends in time."""
        if not self.disk.shared:
            return search(self.db, query, values)
        with reading(self.path, BUSY_MILLISECONDS) as connection:
            return search(connection, query, values)

    def _count_pages(self, _db: object, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def close(self) -> None:
        try:
            if self.commit_marker is not None:
                with self._maintenance("commit marker"):
                    self.commit_marker.write(self.ledger.entry("commits").rows, sync=True)
        finally:
            self._release()

    def _release(self) -> None:
        for part in (self._reader, self.db, self.commit_marker, self.reserve):
            if part is not None:
                with contextlib.suppress(apsw.Error, OSError):
                    part.close()
        self._release_lock()

    def used_bytes(self) -> int:
        """Bytes of the database that are in use."""
        pages = self.db.pragma("page_count") - self.db.pragma("freelist_count")
        return int(pages * self.db.pragma("page_size"))

    def sizes(self) -> dict[str, int]:
        """Bytes of the store's files, and free space of the disk, from any thread."""
        files = {"store_database": "hitbox.db", "store_log": "hitbox.db-wal", "store_reserve": "reserve"}
        found = {name: max(self.disk.size(self.folder / file), 0) for name, file in files.items()}
        return {**found, "disk_free": self.disk.space(self.folder)[1]}

    # ---- table meta

    def failed(self) -> list[int]:
        """Events that could not be matched."""
        for (value,) in self.read("SELECT value FROM meta WHERE key = 'failed'"):
            return list(msgspec.json.decode(value))
        return []

    def get_meta(self, key: str, default: Any = None) -> Any:
        for _, value, _ in self.meta.scan("key = ?", (key,)):
            return msgspec.json.decode(value)
        return default

    def put_meta(self, key: str, value: Any) -> None:
        self.meta.put([(key, msgspec.json.encode(value))])

    # ---- subscribers and subscriptions

    def put_subscriber(self, number: int, name: str, settings: bytes, owner: str = "") -> None:
        """Store a subscriber. `owner`: the principal that it belongs to."""
        self.subscribers.put([(number, name, settings)])
        if owner:
            self.letters.hand_over(number, owner)
            self.owners.put([(number, owner)])

    def existing_subscribers(self, numbers: Iterable[int]) -> set[int]:
        """Those of the subscribers that exist in this transaction."""
        query = "SELECT number FROM subscribers WHERE number IN (SELECT value FROM json_each(?))"
        return {number for (number,) in self.db.execute(query, (msgspec.json.encode(sorted(numbers)).decode(),))}

    def remove_subscriber(self, number: int, owner: str) -> None:
        if not self.existing_subscribers([number]):
            return
        names = [name for (_, name, *_) in self.subscriptions.scan("subscriber = ?", (number,))]
        self.change([StoredChange(number, owner, [], names)])
        self.recent.forget(number)
        self._pending_bytes.more[number] = -self.pending_bytes.get(number, 0)
        unneeded = {row[2] for row in self.deliveries.scan("subscriber = ? AND kept = 1", (number,))}
        self.deliveries.delete_where("subscriber = ?", (number,))
        self._drop_unneeded(unneeded)
        self.letters.delete("subscriber = ?", (number,))
        self.letters.hand_over(number, "")
        self._losses.delete([(number,)])
        self.owners.delete([(number,)])
        self.subscribers.delete([(number,)])

    def change(self, changes: Sequence[StoredChange]) -> set[int]:
        """Change subscriptions, no one twice, and add their names to table `changes`. Returns the subscribers that do
        not exist: nothing is stored for them."""
        for one in changes:
            if one.settings is not None:
                self.put_subscriber(one.subscriber, one.owner, one.settings, one.claimed)
        wanted = {one.subscriber for one in changes}
        missing = wanted - self.existing_subscribers(wanted)
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
        found = ((name, self.read(query, (subscriber, name))) for name in names)
        return {name: (rows[0][0], rows[0][1]) for name, rows in found if rows}

    def subscriptions_of(self, subscriber: int, names: Iterable[str]) -> dict[str, tuple[str, int, str]]:
        """{name: (where, priority, about)} of those that exist."""
        query = f"SELECT wanted, priority, about FROM subscriptions WHERE subscriber = ? AND name = ? AND {READABLE}"
        found = ((name, self.read(query, (subscriber, name))) for name in names)
        return {name: (rows[0][0], rows[0][1], rows[0][2]) for name, rows in found if rows}

    # ---- events

    def append(self, bodies: Sequence[bytes], now: int, principals: Sequence[str] = ()) -> int:
        """Store events, and who published each of them; nobody, if that is left out. Returns the number of the first
        one."""
        first = self.events.next()
        events = zip(principals or [""] * len(bodies), bodies, strict=True)
        self.events.insert((seq, now, *event) for seq, event in enumerate(events, first))
        self._more_events += sum(self._size(len(body)) for body in bodies)
        return first

    # ---- delayed events

    def add_delayed(self, rows: Iterable[tuple[int, str, bytes]]) -> int:
        """Store (due, principal, body); returns the number of the first."""
        entry = self.ledger.changed_entry("delayed")
        first = entry.last + 1
        numbered = [(number, *row) for number, row in enumerate(rows, first)]
        self.delayed.insert(numbered)
        self._delayed_of.more.update(row[2] for row in numbered)
        entry.last += len(numbered)
        return first

    def due_delayed(self, now: int, limit: int, but: Sequence[str] = ()) -> list[tuple[int, str, int]]:
        """(number, principal, bytes) of those that are due, in their order, but those of some principals; from any
        thread."""
        query = """SELECT number, principal, length(body) FROM delayed WHERE due <= ?
                   AND principal NOT IN (SELECT value FROM json_each(?)) ORDER BY due, number LIMIT ?"""
        return self.read(query, (now, msgspec.json.encode(but).decode(), limit))

    def first_due(self) -> int | None:
        """When the next one is due; from any thread."""
        found: list[tuple[int | None]] = self.read("SELECT min(due) FROM delayed")
        return found[0][0]

    def delayed_from(self, first: int, limit: int) -> list[Row]:
        """(number, due, principal, body), beginning at a number; from any thread."""
        query = "SELECT number, due, principal, body FROM delayed WHERE number >= ? ORDER BY number LIMIT ?"
        return self.read(query, (first, limit))

    def move_delayed(self, numbers: Sequence[int], now: int) -> tuple[int, list[tuple[str, bytes]]]:
        """Make delayed events to events. Returns the number of the first of the events, and (principal, body) of each;
        those that were cancelled are missing."""
        found = [row[2:4] for number in numbers for row in self.delayed.scan("number = ?", (number,))]
        self.delayed.delete((number,) for number in numbers)
        self._delayed_of.more.subtract(principal for principal, _ in found)
        return self.append([body for _, body in found], now, [principal for principal, _ in found]), found

    def cancel_delayed(self, numbers: Sequence[int]) -> list[tuple[str, bytes]]:
        """Delete delayed events; returns (principal, body) of those that were there."""
        known = [row for number in dict.fromkeys(numbers) for row in self.delayed.scan("number = ?", (number,))]
        self.delayed.delete((row[0],) for row in known)
        self._delayed_of.more.subtract(row[2] for row in known)
        return [row[2:4] for row in known]

    # ---- deliveries

    def record(self, rows: Sequence[tuple[int, int, int, str, int]], matched: int, failed: Sequence[int] = ()) -> None:
        """Store the deliveries (subscriber, level, seq, ids, sent) of the events up to `matched`. `failed` lists events
        that could not be matched completely."""
        wanted = {row[0] for row in rows}
        known = self.existing_subscribers(wanted)  # while the disk was full, one may have been removed
        fresh = [row for row in rows if row[0] in known] if known != wanted else list(rows)
        self.recent.record(fresh)
        self._pending_bytes.more.update(self._bytes_of(fresh))
        if self.recent.crowded():
            self.settle(max(len(rows), SETTLE_ROWS))
        self.put_meta("matched", matched)
        if failed:
            self.put_meta("failed", [*self.get_meta("failed", []), *failed])

    def record_failed(self, rows: Sequence[tuple[int, int, int, str, int]], failed: Sequence[int]) -> dict[int, int]:
        """After another attempt at the failed events: store the deliveries that are not pending already, and which
        events still fail. Returns how many deliveries each subscriber got."""
        before, first = self.get_meta("failed", []), self.events.first()
        fresh = [
            (subscriber, TOP - level, seq, ids, sent, 0, int(seq < first))
            for subscriber, level, seq, ids, sent in rows
            if self.existing_subscribers([subscriber]) and not self.pending_levels(subscriber, [seq])
        ]
        self._insert_deliveries(fresh)
        self.put_meta("failed", list(failed))
        self._drop_unneeded(set(before).difference(failed))
        return Counter(row[0] for row in fresh)

    def _insert_deliveries(self, rows: Sequence[Row]) -> None:
        """Deliveries that were not pending until now become rows."""
        self.deliveries.insert(rows)
        self._pending_bytes.more.update(self._bytes_of(rows))

    def _bytes_of(self, rows: Sequence[Row]) -> Counter[int]:
        """Bytes of the events and names of deliveries, by subscriber. Of both kinds of rows: the event is the third
        value, and the names are the fourth."""
        found: Counter[int] = Counter()
        sizes = self._events(list({row[2] for row in rows}), "length(body)")
        for row in rows:
            if row[2] in sizes:
                found[row[0]] += len(row[3]) + int(sizes[row[2]][1])
        return found

    def _removed(self, rows: Sequence[Row]) -> None:
        """These deliveries, as rows of their table, are not pending any more."""
        self._pending_bytes.more.subtract(self._bytes_of(rows))
        self._drop_unneeded({row[2] for row in rows if row[6]})

    def _drop_unneeded(self, seqs: set[int]) -> None:
        """Delete those of the events from table `kept` that nobody needs any more."""
        wanted = seqs.difference(self.get_meta("failed", [])) if seqs else seqs
        if wanted:
            query = (
                f"SELECT event, length(body) FROM kept WHERE event IN (SELECT value FROM json_each(?)) AND {_UNUSED}"
            )
            unused = list(self.db.execute(query, (msgspec.json.encode(sorted(wanted)).decode(),)))
            self.kept.delete((event,) for event, _ in unused)
            self._more_kept -= sum(size for _, size in unused)

    def settle(self, limit: int = SETTLE_ROWS, before: float = math.inf) -> int:
        """Turn about `limit` deliveries of the oldest records of the log, those written before the time `before`, into
        rows; returns how many."""
        found = self.recent.settle(limit, before)
        self._insert_recent(found)
        return len(found)

    def _insert_recent(self, deliveries: Sequence[RecentDelivery], kept: int = 0) -> None:
        """Deliveries that were taken out of the log become rows. A search that is under way may be past their keys, so
        it is told when they expire."""
        if deliveries:
            if self._settled_expiry is not None:
                known = self._expiries([row[2] for row in deliveries]).values()
                self._settled_expiry = min([self._settled_expiry, *known])
            self.deliveries.insert(row_of(one, kept) for one in deliveries)

    def settle_overdue(self) -> int:
        """Turn the deliveries of records that are not new any more into rows; returns how many."""
        return self.settle(before=self.recent.due())

    def acknowledge(self, keys: Iterable[tuple[int, int, int]]) -> dict[int, int]:
        """Remove deliveries (subscriber, level, seq); returns how many each subscriber had of them."""
        recent, others = self.recent.remove(keys)
        rows = list(map(row_of, recent))
        if others:
            rows += self.deliveries.take((subscriber, TOP - level, seq) for subscriber, level, seq in others)
        self._removed(rows)
        return Counter(row[0] for row in rows)

    def pending_levels(self, subscriber: int, seqs: Sequence[int]) -> list[tuple[int, int]]:
        """(level, seq) of those of the events that are pending."""
        recent = [(row[1], seq) for seq in seqs if (row := self.recent.get(subscriber, seq)) is not None]
        query = """SELECT urgency, seq FROM deliveries WHERE subscriber = ?1
                   AND seq IN (SELECT value FROM json_each(?2)) AND urgency IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"""
        rows = self.db.execute(query, (subscriber, msgspec.json.encode(seqs).decode()))
        return recent + [(TOP - urgency, seq) for urgency, seq in rows]

    def deliveries_of(self, subscriber: int) -> Iterator[Row]:
        """The pending deliveries of a subscriber: the columns of table `deliveries`."""
        yield from map(row_of, self.recent.of(subscriber))
        for *row, _ in self.deliveries.scan("subscriber = ?", (subscriber,)):
            yield tuple(row)

    def fetch(self, subscriber: int, skip: set[int], limit: int) -> tuple[list[StoredDelivery], bool]:
        """The next deliveries in order, which are marked as sent, and whether there are more."""
        query = f"""SELECT d.*, {_TIME}, {_BODY} FROM {_WITH_EVENTS} WHERE d.subscriber = ? AND {_HAS_EVENT}
                    ORDER BY d.urgency, d.seq"""
        rows = self.db.execute(query, (subscriber,))
        settled = list(islice((row for row in rows if row[2] not in skip), limit + 1))
        rows.close()
        recent = self.recent.next_of(subscriber, skip, self.events.first(), limit + 1)
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
        events = self._events([row[2] for row in recent])
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
        self.deliveries.delete_read(returning)
        self.recent.record([(row[0], TOP - row[1], row[2], row[3], 1) for row in returning])
        self.deliveries.put([(*row[:4], 1, *row[5:7]) for row in staying if not row[4]])

    def _events(self, seqs: Sequence[int], text: str = "body") -> dict[int, tuple[int, bytes]]:
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

    def _delivery(self, subscriber: int, level: int, seq: int) -> Row | None:
        """A pending delivery as a row of table `deliveries`; if it is in the log, it becomes one."""
        if (recent := self.recent.take(subscriber, level, seq)) is not None:
            self._insert_recent([recent])
        for *row, _ in self.deliveries.scan(*_delivery_key(subscriber, level, seq)):
            return tuple(row)
        return None

    def retry(self, subscriber: int, level: int, seq: int, tries: int) -> None:
        row = self._delivery(subscriber, level, seq)
        if row is not None:
            self.deliveries.put([(*row[:4], 1, tries, row[6])])

    def add_dead_letters(
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
        rows = self._take(subscriber, keys)
        kept = rows[max(len(rows) - most, 0) :]
        texts = {seq: body for seq, (_, body) in self._events([row[2] for row in kept]).items()}
        entry, now = self.ledger.changed_entry("dead"), clock.now()
        letters = []
        for number, (_, urgency, seq, ids, *_) in enumerate(kept, entry.last + 1):
            letters.append((number, subscriber, TOP - urgency, seq, ids, tries, reason, now, texts.get(seq)))
        self.letters.add(letters)
        entry.last += len(letters)
        self.add_losses(subscriber, dead=len(rows))
        self._removed(rows)
        self.letters.limit(subscriber, most, most_of_principal)
        return len(rows)

    def add_losses(self, subscriber: int, dropped: int = 0, expired: int = 0, dead: int = 0) -> None:
        """Count deliveries that a subscriber did not get, with what removes them."""
        if dropped or expired or dead:
            known = next(((row[1:4]) for row in self._losses.scan("subscriber = ?", (subscriber,))), (0, 0, 0))
            self._losses.put([(subscriber, known[0] + dropped, known[1] + expired, known[2] + dead)])

    def losses(self) -> dict[int, tuple[int, int, int]]:
        """How many deliveries each subscriber did not get: dropped, expired, dead."""
        return {number: (dropped, expired, dead) for number, dropped, expired, dead, _ in self._losses.scan()}

    def _take(self, subscriber: int, keys: Iterable[tuple[int, int]]) -> list[Row]:
        """Remove pending deliveries (level, seq) from the log or their table; returns those that were there as rows of
        the table, by age. The caller goes on with `_removed` when it has read their events."""
        recent, others = self.recent.remove((subscriber, *key) for key in keys)
        settled = self.deliveries.take((subscriber, TOP - level, seq) for _, level, seq in others)
        return sorted([*map(row_of, recent), *settled], key=lambda row: row[2])

    def replay_dead_letters(self, numbers: Sequence[int]) -> list[tuple[int, int, int]]:
        """Turn dead letters into deliveries again; returns their (number, subscriber, seq). A letter is skipped if its
        event is pending for the subscriber already or has expired, or if it has no text to send."""
        revived = []
        now = clock.now()
        for number in numbers:
            for _, subscriber, level, seq, ids, *_, died, body, _ in list(self.dead.scan("number = ?", (number,))):
                stored = self._events([seq], "NULL").get(seq)
                if (
                    body is None
                    or not self.existing_subscribers([subscriber])
                    or self.pending_levels(subscriber, [seq])
                    or 0 < expires_at(0 if stored is None else stored[0], body) <= now
                ):
                    continue
                if stored is None:  # the time of the event is gone with it
                    self._keep([(seq, died, body)])
                self._insert_deliveries([(subscriber, TOP - level, seq, ids, 1, 0, int(seq < self.events.first()))])
                self.letters.delete("number = ?", (number,))
                revived.append((number, subscriber, seq))
        return revived

    def drop_dead_letters(self, numbers: Sequence[int]) -> int:
        """Delete dead letters; returns how many there were."""
        return sum(self.letters.delete("number = ?", (number,)) for number in numbers)

    def add_replayed(self, subscriber: int, rows: Iterable[tuple[int, int, str]]) -> int:
        """Add deliveries (level, seq, ids) of old events, except those pending already and those whose event has been
        removed; returns how many were added. However many are pending, only those of these events are looked for."""
        if not self.existing_subscribers([subscriber]):
            return 0
        wanted = [row for row in rows if row[1] >= self.events.first()]
        pending = {seq for _, seq in self.pending_levels(subscriber, [seq for _, seq, _ in wanted])}
        fresh = [(subscriber, TOP - level, seq, ids, 1, 0, 0) for level, seq, ids in wanted if seq not in pending]
        self._insert_deliveries(fresh)
        return len(fresh)

    def failed_events(self) -> list[Row]:
        """(seq, time, body) of the events that could not be matched; from any thread."""
        wanted = msgspec.json.encode(self.failed()).decode()
        query = """SELECT seq, time, body FROM events WHERE seq IN (SELECT value FROM json_each(?1))
                   UNION ALL SELECT event, time, body FROM kept WHERE event IN (SELECT value FROM json_each(?1))"""
        return sorted(self.read(query, (wanted,)))

    def events_from(self, seq: int, limit: int) -> list[Row]:
        """(seq, time, principal, body) of the next events, from any thread."""
        query = "SELECT seq, time, principal, body FROM events WHERE seq >= ? ORDER BY seq LIMIT ?"
        return self.read(query, (seq, limit))

    def number_of_latest(self, count: int) -> int:
        """The number with which the latest `count` events begin, which may be fewer; 0: there are none."""
        query = "SELECT min(seq) FROM (SELECT seq FROM events ORDER BY seq DESC LIMIT ?)"
        ((found,),) = self.read(query, (count,))
        return found or 0

    def pending(self) -> dict[int, int]:
        """The number of pending deliveries of each subscriber; called before the writer runs."""
        query = f"SELECT d.subscriber, count(*) FROM {_WITH_EVENTS} WHERE {_HAS_EVENT} GROUP BY d.subscriber"
        counts = Counter(dict(self.db.execute(query)))
        counts.update(row[0] for row in self.recent.all() if row[2] >= self.events.first())
        return counts

    def unacknowledged(self) -> int:
        """The number of pending deliveries, from any thread."""
        return self.deliveries.rows() + self.recent.count

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
        expiries = self._expiries([seq for _, seq in keys])
        return [key for key in keys if expiries.get(key[1], NEVER) <= now]

    def _expiries(self, seqs: Sequence[int]) -> dict[int, int]:
        """When events expire, those that do."""
        ends = self._events(seqs, f"substr(body, -{TTL_BYTES})")
        return {seq: expires for seq, end in ends.items() if (expires := expires_at(*end))}

    def expired(
        self, after: tuple[int, int, int], limit: int, now: int
    ) -> tuple[list[tuple[int, int, int]], int, tuple[int, int, int] | None]:
        """Look at the next `limit` deliveries after the key (subscriber, urgency, seq). Returns (subscriber, level,
        seq) of those that have expired; when the first of the others expires, 0 if none does; and the key of the last
        one. None instead of a key: these were all, with those of the log. What is settled during such a search may
        be missed by it, and counts as one of the others."""
        if after[0] < 0:
            self._settled_expiry = NEVER
        query = f"""SELECT d.subscriber, d.urgency, d.seq, ifnull({_TIME}, 0), substr({_BODY}, -{TTL_BYTES})
                    FROM {_WITH_EVENTS}
                    WHERE (d.subscriber, d.urgency, d.seq) > (?, ?, ?)
                    ORDER BY d.subscriber, d.urgency, d.seq LIMIT ?"""
        rows = list(self.db.execute(query, (*after, limit)))
        key = tuple(rows[-1][:3]) if len(rows) == limit else None
        found = [(number, TOP - urgency, seq, when, end) for number, urgency, seq, when, end in rows]
        if key is None and self.recent.count:
            recent = list(self.recent.all())
            ends = self._events(sorted({row[2] for row in recent}), f"substr(body, -{TTL_BYTES})")
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

    # ---- retention

    def trim(self, before: int, most_bytes: int, most_in_all: int = NEVER, batch: int = 20_000) -> Trimmed:
        """Remove events older than `before` (microseconds), and the oldest ones while all events take more than
        `most_bytes`, or the database is larger than `most_in_all` or the disk allow. Whatever else is stored, such as
        dead letters and delayed events, takes nothing of `most_bytes`. What is still needed is kept elsewhere. At most
        `batch` events; fewer if many deliveries of them are pending."""
        self._follow_clock()
        first, used = 0, self.used_bytes()
        most_in_all = min(most_in_all, self._most_on_disk())
        excess, excess_in_all = self.event_bytes + self._more_events - most_bytes, used - most_in_all
        gone, count, limit, accepted = 0, 0, min(batch, 2 * self._span), self._acceptance()
        room = self.disk.space(self.folder)[1] // 2  # for the pages of these events in the log of SQLite
        query = "SELECT seq, time, length(body) FROM events WHERE seq <= ? ORDER BY seq LIMIT ?"
        for seq, when, size in self.db.execute(query, (self.get_meta("matched", 0), limit)):
            if (accepted(seq, when) >= before and excess <= 0 and excess_in_all <= 0) or (count and room < 0):
                self._note_future(seq, when)
                break
            first, gone, count = first or seq, seq, count + 1
            excess, excess_in_all, room = excess - self._size(size), excess_in_all - size - 32, room - size - 32
        if not count:
            return Trimmed(0, False)
        through, removed = self._remove_through(first, gone)
        self._span = max(removed, 1)
        self._more_trimmed += removed
        return Trimmed(removed, removed > 0 and (count == limit or through < gone or room < 0))

    def _note_future(self, seq: int, when: int) -> None:
        """If the time of the oldest event is in the future, remember that all there are were accepted before now."""
        if when > clock.now() and seq > self.get_meta("ahead", (0, 0, 0))[0]:
            self.put_meta("ahead", (self.events.next() - 1, clock.now(), clock.now()))

    def _follow_clock(self) -> None:
        """Of what has a time in the future, only time that passes counts, not what the clock jumps meanwhile."""
        (last, seen, then), now = self.get_meta("ahead", (0, 0, 0)), clock.now()
        if last >= self.events.first():
            self.put_meta("ahead", (last, seen if 0 <= now - then <= STEP else max(seen + now - then, 0), now))

    def _acceptance(self) -> Callable[[int, int], int]:
        """A function of the number and the time of an event: when it was accepted. A time in the future is of a clock
        that was wrong. Then it is when retention came upon it; until that, now."""
        (last, seen, _), now = self.get_meta("ahead", (0, 0, 0)), clock.now()
        return lambda seq, when: when if when <= now else min(seen, now) if seq <= last else now

    def _most_on_disk(self) -> int:
        """How large the database may be, so that the disk has room for the reserve, for the log of SQLite, and some
        more: retention makes room before the disk is full, and when it is."""
        assert self.reserve is not None
        sizes = self.sizes()
        room = sizes["store_database"] + sizes["store_log"] + sizes["disk_free"] - self.reserve.missing()
        return room - self._checkpoint_bytes - self.reserve.bytes // 2

    def _remove_through(self, first: int, last: int) -> tuple[int, int]:
        """Remove the events from `first` to `last`, or fewer if too many deliveries of them are pending; what is still
        needed is kept. Returns up to which number, and how many. Without room, it takes no more than it frees."""
        assert self.reserve is not None
        full, most = self.reserve.missing() > 0, min(KEPT_BYTES, max(self.reserve.bytes // 4, SMALL_BYTES))
        recent = [row for row in self.recent.all() if row[2] <= last]
        failed = [seq for seq in self.get_meta("failed", []) if seq <= last]
        while True:
            settled = list(self.db.execute(_PENDING_IN, (first, last, KEPT_ROWS + 1)))
            needed = {row[2] for row in [*settled, *recent]}.union(failed)
            if first == last:
                settled = list(self.db.execute(_PENDING_IN, (first, last, -1)))
                break
            sizes = self._events(sorted(needed), "length(body)").values()
            if len(settled) + len(recent) <= KEPT_ROWS and sum(int(size) for _, size in sizes) <= most:
                break
            last = first + (last - first) // 2
            recent = [row for row in recent if row[2] <= last]
            failed = [seq for seq in failed if seq <= last]
        events = [(seq, *event) for seq, event in self._events(sorted(needed)).items()]
        if full and recent:  # they are shorter in the log
            ((size,),) = self.db.execute("SELECT sum(length(body)) FROM events WHERE seq <= ?", (last,))
            if size - sum(len(body) for *_, body in events) < sum(len(row[3]) + ROW_BYTES for row in recent):
                last, events, recent, settled = min(needed) - 1, [], [], []
        self._more_events -= self._event_bytes(last)
        removed = self.events.delete_through(last)  # first: on a full disk what follows needs the space
        self._keep(events)
        self.recent.remove((row[0], row[1], row[2]) for row in recent)
        self.deliveries.delete_read(settled)
        self._insert_recent(recent, kept=1)
        self.deliveries.insert([(*row[:6], 1) for row in settled])
        return last, removed

    def _keep(self, events: Sequence[Row]) -> None:
        """Events (seq, time, body) that retention has passed are still needed."""
        self.kept.insert(events)
        self._more_kept += sum(len(body) for *_, body in events)

    @property
    def pending_bytes(self) -> dict[int, int]:
        return self._pending_bytes.committed

    @property
    def delayed_of(self) -> dict[str, int]:
        """The number of delayed events of each principal."""
        return self._delayed_of.committed

    def count_beyond(self, subscriber: int, most_bytes: int, most: int) -> int:
        """How many of the oldest pending deliveries, `most` at most, must go so that only so many bytes are left."""
        over = self._pending_bytes.now(subscriber) - most_bytes
        keys = self.oldest(subscriber, most) if over > 0 else []
        sizes = self._events(sorted({seq for _, seq in keys}), "length(body)")
        for count, (_, seq) in enumerate(keys):
            if over <= 0:
                return count
            over -= int(sizes[seq][1]) if seq in sizes else 0
        return len(keys)

    def count_older(self, subscriber: int, before: int, most: int) -> int:
        """How many of the oldest pending deliveries, `most` at most, are of events before a time."""
        seqs = [seq for _, seq in self.oldest(subscriber, most)]
        events, accepted = self._events(sorted(set(seqs)), "NULL"), self._acceptance()
        times = [accepted(seq, events[seq][0]) for seq in seqs if seq in events]
        return sum(1 for _ in takewhile(lambda when: when < before, times))

    def oldest_pending(self, subscribers: Iterable[int]) -> dict[int, tuple[int, int]]:
        """(number, time) of the oldest event that is pending for each of the subscribers, in this transaction."""
        oldest: dict[int, int] = {}
        for number in subscribers:
            ((settled,),) = self.db.execute(_OLDEST_OF, (number,))
            seqs = [row[2] for row in self.recent.of(number)]
            if settled is not None or seqs:
                oldest[number] = min(seqs if settled is None else [settled, *seqs])
        events, accepted = self._events(sorted(set(oldest.values())), "NULL"), self._acceptance()
        return {number: (seq, accepted(seq, events[seq][0])) for number, seq in oldest.items() if seq in events}


_LEVELS = f"level(u) AS (VALUES {', '.join(f'({urgency})' for urgency in range(LEVELS))})"
_OLDEST_OF = (
    f"WITH {_LEVELS} SELECT min((SELECT min(seq) FROM deliveries WHERE subscriber = ? AND urgency = u)) FROM level"
)
_PENDING_IN = f"""
    WITH RECURSIVE owner(n) AS (
        SELECT min(subscriber) FROM deliveries
        UNION ALL SELECT (SELECT min(subscriber) FROM deliveries WHERE subscriber > n) FROM owner WHERE n IS NOT NULL
    ), {_LEVELS}
    SELECT d.* FROM owner CROSS JOIN level CROSS JOIN deliveries d
    WHERE n IS NOT NULL AND d.subscriber = n AND d.urgency = u AND d.seq BETWEEN ? AND ? LIMIT ?"""
"""The pending deliveries of events from one number to another. Jumps from subscriber to subscriber in key order: a few
steps per subscriber with pending deliveries, none for the others."""
_WITH_EVENTS = """deliveries d LEFT JOIN events e ON e.seq = d.seq
                  LEFT JOIN kept k ON d.kept = 1 AND k.event = d.seq"""
_HAS_EVENT = "(e.seq IS NOT NULL OR k.event IS NOT NULL)"
_TIME, _BODY = "ifnull(e.time, k.time)", "ifnull(e.body, k.body)"
_UNUSED = "NOT EXISTS (SELECT 1 FROM deliveries WHERE seq = event AND kept = 1)"


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


def meta_fault(key: str, value: bytes) -> str:
    """Why a value of table `meta` is invalid for its key; empty if it is valid."""
    try:
        found = msgspec.json.decode(value, type=META_TYPES.get(key, Any))
        if key == "schema":
            Schema.from_json(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, HitboxError) as problem:
        return str(problem)
    return ""


def _delivery_key(subscriber: int, level: int, seq: int) -> tuple[str, tuple[int, int, int]]:
    return "subscriber = ? AND urgency = ? AND seq = ?", (subscriber, TOP - level, seq)
